"""Tree layouts against literal matrices, and masks against ancestor sets."""

from __future__ import annotations

import random

import torch
from conftest import random_tree

from entmtp_calib.engine.acceptance import accept
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.topology import Topology, published_default

CPU = torch.device("cpu")
T, F = True, False


def test_mask_depths_parents_and_paths_of_a_small_tree() -> None:
    """root → (0) → (0,0), (0,1); root → (1) → (1,0): checked by eye."""
    layout = TreeLayout(Topology(((0,), (0, 0), (1,), (0, 1), (1, 0))), CPU)
    assert layout.topology.nodes == ((0,), (1,), (0, 0), (0, 1), (1, 0))
    assert torch.equal(
        layout.mask,
        torch.tensor(
            [
                [T, F, F, F, F, F],
                [T, T, F, F, F, F],
                [T, F, T, F, F, F],
                [T, T, F, T, F, F],
                [T, T, F, F, T, F],
                [T, F, T, F, F, T],
            ]
        ),
    )
    assert layout.depths.tolist() == [0, 1, 1, 2, 2, 2]
    assert layout.parents.tolist() == [0, 0, 0, 1, 1, 2]
    assert layout.paths.tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 1, 3], [0, 1, 4], [0, 2, 5]]
    second = layout.levels[1]
    assert (second.expand.tolist(), second.slots.tolist(), second.ranks.tolist(), second.width) == (
        [0, 1],
        [0, 0, 1],
        [0, 1, 0],
        2,
    )


def test_mask_rows_are_ancestor_sets_for_random_trees() -> None:
    rng = random.Random(0)
    for topology in [random_tree(rng, 40) for _ in range(20)] + [published_default(), Topology()]:
        layout = TreeLayout(topology, CPU)
        nodes = [(), *layout.topology.nodes]
        for row, node in enumerate(nodes):
            ancestors = {nodes.index(node[:d]) for d in range(len(node) + 1)}
            assert set(layout.mask[row].nonzero()[:, 0].tolist()) == ancestors
            assert layout.paths[row][: len(node) + 1].tolist() == sorted(ancestors)
            assert int(layout.depths[row]) == len(node)


def test_rows_in_a_union_point_at_the_same_nodes() -> None:
    small = TreeLayout(Topology(((0,), (0, 0), (1,))), CPU)
    large = TreeLayout(published_default(), CPU)
    names = [(), *large.topology.nodes]
    assert [names[row] for row in small.rows_in(large).tolist()] == [(), *small.topology.nodes]


def test_acceptance_follows_the_target_and_stops_at_the_first_miss() -> None:
    layout = TreeLayout(Topology(((0,), (1,), (0, 0), (1, 0), (1, 0, 0))), CPU)
    tokens = torch.tensor([7, 10, 11, 12, 13, 14])
    choices = torch.tensor([11, 0, 13, 0, 99, 0])  # root → 11, (1) → 13, (1,0) → 99 which is no child
    found = accept(layout, tokens == choices[layout.parents])
    assert (int(found.length), int(found.row), found.path.tolist()[:3]) == (2, 4, [0, 2, 4])
    nothing = accept(layout, tokens == 50)
    assert (int(nothing.length), int(nothing.row)) == (0, 0)


def test_a_right_token_under_a_wrong_parent_is_not_accepted() -> None:
    layout = TreeLayout(Topology(((0,), (0, 0))), CPU)
    found = accept(layout, torch.tensor([1, 2, 3]) == torch.tensor([9, 3, 0])[layout.parents])
    assert int(found.length) == 0
