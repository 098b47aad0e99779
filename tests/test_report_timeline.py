"""What the timeline tells: every token once, how it came, and what the policies would do, dynamic ones included."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import byte_tokenizer
from made_runs import add_dynamic, made, traces, whole

from entmtp_calib.evidence import accepted_depths, walk
from entmtp_calib.report.figure import Missing
from entmtp_calib.report.material import Material, read_drafts, read_material
from entmtp_calib.report.timeline import timeline, token_pieces
from entmtp_calib.report.trees import trees


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return read_material(whole(tmp_path_factory.mktemp("made") / "run").path)


def test_the_timeline_tells_every_token_once(material: Material) -> None:
    figure = made(timeline(material, byte_tokenizer(), "test-0"))
    own = traces("test")[0]
    main = [row for row in figure.rows if row["policy"] == "static"]
    assert sum(row["accepted"] + 1 for row in main) == len(own) == len(figure.facts["pieces"])
    assert [row["position"] for row in main] == walk(accepted_depths(material.bank.trees[2].topology, own)).tolist()  # type: ignore[union-attr]
    text = byte_tokenizer().decode(own.tokens.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert "".join(piece for piece, _depth, _step in figure.facts["pieces"]) == text
    assert {row["policy"] for row in figure.rows} == {"static", "hysteresis"}  # the recommended one never switches
    assert isinstance(timeline(material, None, "nobody"), Missing)
    ids = made(timeline(material)).facts["pieces"]
    assert all(piece.strip().isdigit() for piece, _depth, _step in ids)


def test_a_dynamic_policy_is_shown_by_the_path_values_that_the_fit_stored(tmp_path: Path) -> None:
    """Beside a walk that takes the surest nodes one by one."""
    run = whole(tmp_path / "run")
    size = 3
    add_dynamic(run, size)
    material = read_material(run.path)
    drafts, figure = read_drafts(material, "test"), made(timeline(material, None, "test-0"))
    assert drafts is not None
    nodes, here, own = drafts.drafted.sorted().nodes, 0, traces("test")[0]
    for row in [row for row in figure.rows if row["policy"] == "dynamic"]:
        assert row["position"] == here
        order = sorted(range(len(nodes)), key=lambda column: (-drafts.values[0][here][column], column))
        best = {nodes[column] for column in order[:size]}
        path = tuple(own.ranks[here].tolist())
        assert row["accepted"] == max(depth for depth in range(4) if all(path[:d] in best for d in range(1, depth + 1)))
        assert row["by_depth"] == " ".join(str(sum(len(node) == depth for node in best)) for depth in (1, 2, 3))
        here += row["accepted"] + 1
    assert here == len(own)
    assert {row["policy"] for row in figure.rows} == {"dynamic", "static"}
    rows = [row for row in made(trees(material)).rows if row["tree"].startswith("dynamic")]
    assert sum(row["verified"] for row in rows) == pytest.approx(size)
    assert all(row["accepted"] <= row["verified"] for row in rows)
    for path_of in run.file("rollouts/values/test").rglob("00002.npz"):
        path_of.unlink()
    rest = read_material(run.path)
    assert "cannot be replayed" in made(timeline(rest)).notes[0]
    assert {row["tree"] for row in made(trees(rest)).rows} == {"chain", "wide"}


def test_a_token_knows_the_depth_that_it_came_from() -> None:
    pieces = token_pieces([7, 8, 9, 4], [2, 0])
    assert pieces == [("7 ", 0, 0), ("8 ", 1, 0), ("9 ", 2, 0), ("4 ", 0, 1)]
    assert token_pieces([], []) == []
