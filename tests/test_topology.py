"""Laws of nodes and topologies."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from conftest import random_tree

from entmtp_calib.errors import ArtefactError
from entmtp_calib.topology import Node, Topology, chain, draw, from_lists, published_default, union


def order(node: Node) -> tuple[int, Node]:
    return len(node), node


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([()], "not a node"),
        ([(-1,)], "not a node"),
        ([(0,), (0, -1)], "not a node"),
        ([(0,), (0,)], "twice"),
        ([(0,), (0, 0), (0, 0)], "twice"),
        ([(0, 0)], "no parent"),
        ([(0, 0), (0,)], "no parent"),
        ([(0,), (0, 0, 0)], "no parent"),
        ([(1,)], "gap"),
        ([(1,), (0,)], "gap"),
        ([(0,), (2,)], "gap"),
        ([(0,), (0, 1)], "gap"),
    ],
)
def test_a_node_comes_once_after_its_parent_and_its_left_sibling(nodes: list[Node], why: str) -> None:
    with pytest.raises(ArtefactError, match=why):
        Topology(tuple(nodes))


def test_the_refusal_names_the_node_and_what_it_lacks() -> None:
    with pytest.raises(ArtefactError, match=r"\[0, 2\].*\[0, 1\]"):
        Topology(((0,), (0, 0), (0, 2)))


def test_the_empty_topology_is_plain_decoding() -> None:
    tree = Topology()
    assert (tree.size, tree.depth, tree.max_rank, str(tree)) == (0, 0, -1, "autoregressive")
    assert tree.candidates(3) == [(0,)]
    assert tree.candidates(0) == []
    assert list(draw(tree)) == ["root"]


def test_every_prefix_of_a_topology_is_one() -> None:
    rng = random.Random(0)
    for tree in (published_default(), *(random_tree(rng, 30) for _ in range(10))):
        for size in range(tree.size + 1):
            assert tree.prefix(size).nodes == tree.nodes[:size]


def test_size_depth_and_rank_count_all_nodes_not_the_last() -> None:
    tree = Topology(((0,), (0, 0), (0, 0, 0), (0, 1), (1,)))
    assert (tree.size, tree.depth, tree.max_rank) == (5, 3, 1)


def test_candidates_are_exactly_the_nodes_that_can_be_added() -> None:
    rng = random.Random(1)
    for _ in range(10):
        tree = random_tree(rng, rng.randrange(12), depth=3)
        ranks = range(tree.max_rank + 3)
        for depth in (1, 2, 3):
            addable = set()
            for node in (n for length in range(1, depth + 1) for n in itertools.product(ranks, repeat=length)):
                try:
                    Topology((*tree.nodes, node))
                except ArtefactError:
                    continue
                addable.add(node)
            assert sorted(tree.candidates(depth)) == sorted(addable)


def test_order_is_part_of_a_topology_and_sorting_removes_it() -> None:
    one, other = Topology(((0,), (0, 0), (1,))), Topology(((0,), (1,), (0, 0)))
    assert one != other
    assert one.sorted() == other.sorted() == other
    assert one.sorted().sorted() == one.sorted()


def test_a_union_is_the_smallest_sorted_tree_that_holds_all() -> None:
    rng = random.Random(2)
    for _ in range(10):
        trees = [random_tree(rng, rng.randrange(15)) for _ in range(3)]
        both = union(trees)
        assert set(both.nodes) == {node for tree in trees for node in tree.nodes}
        assert both == both.sorted() == union([*trees, *trees])
    assert union([]) == Topology()


def test_a_chain_is_first_guesses_only() -> None:
    assert chain(0) == Topology()
    assert chain(3).nodes == ((0,), (0, 0), (0, 0, 0))


def test_lists_in_any_order_give_one_sorted_topology() -> None:
    rng = random.Random(3)
    for tree in (published_default(), *(random_tree(rng, 25) for _ in range(10))):
        lists = tree.to_lists()
        for _ in range(5):
            rng.shuffle(lists)
            assert from_lists(lists).nodes == tuple(sorted(tree.nodes, key=order))


def test_lists_round_trip() -> None:
    assert from_lists([]) == Topology()
    assert from_lists(published_default().to_lists()) == published_default().sorted()


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "[[0]]", "__import__('os').getcwd()", {"0": [0]}, ([0],), [0], ["0"], [None], [{}], [(0,)],
        [["0"]], [[0.0]], [[0.5]], [[None]], [[[0]]], [[True]], [[False]], [[0], [True]], [[]], [[-1]], [[0], [0, -1]],
        [[0], [0]], [[1]], [[0], [0, 1]], [[0, 0]], [[0], [2]], [[10**30]], [[float("nan")]],
    ],
)  # fmt: skip
def test_lists_that_are_no_tree_are_refused_by_the_given_name(value: object) -> None:
    with pytest.raises(ArtefactError, match=r"trees\[3\]\.nodes"):
        from_lists(value, "trees[3].nodes")


def test_the_published_tree_has_its_published_shape() -> None:
    tree = published_default()
    assert tree.size == 63
    assert Counter(map(len, tree.nodes)) == {1: 10, 2: 28, 3: 23, 4: 2}
    assert tree == tree.sorted()
    kids = Counter(node[:-1] for node in tree.nodes)
    counts = [[kids[node] for node in sorted(kids, key=order) if len(node) == depth] for depth in range(4)]
    assert counts == [[10], [10, 7, 3, 2, 1, 1, 1, 1, 1, 1], [10, 3, 2, 1, 1, 1, 1, 1, 2, 1], [2]]
    assert {node[:-1] for node in tree.nodes if len(node) == 3} == {*((0, rank) for rank in range(8)), (1, 0), (2, 0)}
    assert {node for node in tree.nodes if len(node) == 4} == {(0, 0, 0, 0), (0, 0, 0, 1)}


def test_a_drawing_has_one_line_a_node_whatever_the_order() -> None:
    tree = Topology(((0,), (1,), (0, 0), (1, 0), (0, 1)))
    wanted = ["root", "├─ 0", "│  ├─ 0", "│  └─ 1", "└─ 1", "   └─ 0"]
    assert list(draw(tree)) == list(draw(tree.sorted())) == wanted
    assert len(list(draw(published_default()))) == 64
