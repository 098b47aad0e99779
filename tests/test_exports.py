"""Laws of exports: the engines' exact syntax, refusals of trees that an engine would run wrongly, and the way back by import."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path

import pytest
import torch
from conftest import cli, random_tree

from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.exports import ENGINES, export_ladder, export_tree
from entmtp_calib.imports import import_text
from entmtp_calib.topology import Topology, chain, published_default

BANK = Path(__file__).parent / "golden" / "bank-v1.json"
SMALL = Topology(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
UNIFORM = Topology(((0,), (1,), (0, 0), (1, 0)))


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("medusa", "[[0], [1], [0, 0], [0, 1], [0, 0, 0]]\n"),
        ("hydra", "[[0], [1], [0, 0], [0, 1], [0, 0, 0]]\n"),
        ("trtllm", "- [0]\n- [1]\n- [0, 0]\n- [0, 1]\n- [0, 0, 0]\n"),
        ("vllm", '{"num_speculative_tokens": 3}\n'),
        ("sglang", "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 2 "
                   "--speculative-num-draft-tokens 6\n"),
    ],
)  # fmt: skip
def test_every_engine_gets_its_syntax(engine: str, text: str) -> None:
    assert export_tree(SMALL, engine).text == text


def test_depths_and_node_counts_are_told_apart() -> None:
    notes = " ".join(export_tree(SMALL, "trtllm").notes)
    assert "max_draft_len is the number of nodes, 5" in notes
    assert "max_draft_len is the depth, 3; max_total_draft_tokens is the number of nodes, 5" in notes
    assert "2 of 5 nodes are not" in " ".join(export_tree(SMALL, "vllm").notes)
    assert "nodes are not" not in " ".join(export_tree(chain(3), "vllm").notes)


def test_vllm_names_the_method_only_for_heads_that_it_runs() -> None:
    assert json.loads(export_tree(SMALL, "vllm", "Medusa").text) == {"method": "medusa", "num_speculative_tokens": 3}
    assert "does not run" in " ".join(export_tree(SMALL, "vllm", "entmtp hydra").notes)
    assert "does not run" not in " ".join(export_tree(SMALL, "hydra", "Hydra mlp").notes)


def test_the_legacy_tree_of_vllm_is_uniform_or_refused() -> None:
    config = json.loads(export_tree(UNIFORM, "vllm", legacy=True).text)
    assert config == {"num_speculative_tokens": 4, "speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
    assert len(ast.literal_eval(config["speculative_token_tree"])) == config["num_speculative_tokens"]
    with pytest.raises(ArtefactError, match="same number of children"):
        export_tree(SMALL, "vllm", legacy=True)
    with pytest.raises(UsageError, match="--legacy"):
        export_tree(SMALL, "medusa", legacy=True)


def test_the_sglang_flags_stay_within_its_own_bound() -> None:
    export = export_tree(published_default(), "sglang")
    words = export.text.split()
    steps, topk, tokens = (int(words[place]) for place in (3, 5, 7))
    assert (steps, topk, tokens) == (4, 10, 41)
    assert "allow 41" in " ".join(export.notes)


def test_trees_that_an_engine_would_run_wrongly_are_refused() -> None:
    wide = Topology(tuple((rank,) for rank in range(11)))
    with pytest.raises(ArtefactError, match="guess 10"):
        export_tree(wide, "medusa")
    assert "not grounded" in " ".join(export_tree(wide, "hydra").notes)
    skipping = Topology(((0,), (1,), (1, 0)))  # Hydra would hang [1, 0] under [0]
    with pytest.raises(ArtefactError, match=r"\[1\] has children"):
        export_tree(skipping, "hydra")
    assert export_tree(skipping, "medusa").text
    with pytest.raises(ArtefactError, match="129 nodes"):
        export_tree(Topology(tuple((rank,) for rank in range(129))), "sequoia")
    with pytest.raises(UsageError, match="plain decoding"):
        export_tree(Topology(), "trtllm")
    with pytest.raises(UsageError) as error:
        export_tree(SMALL, "medsua")
    assert "medusa" in error.value.hint


@pytest.mark.parametrize("engine", ["medusa", "hydra", "trtllm", "vllm"])
def test_an_export_read_again_exports_to_the_same_bytes(engine: str) -> None:
    rng = random.Random(0)
    trees = [published_default(), chain(4), *(random_tree(rng, size) for size in (1, 5, 40))]
    legacy = engine == "vllm"
    for tree in [UNIFORM, chain(3)] if legacy else trees:
        try:
            text = export_tree(tree, engine, legacy=legacy).text
        except ArtefactError:  # a random tree that Hydra's decoder would run wrongly
            assert engine == "hydra"
            continue
        (again,) = import_text(text, "tree")
        assert again.topology == tree.sorted()
        assert again.added == ()
        assert export_tree(again.topology, engine, legacy=legacy).text == text


def test_the_grow_map_is_what_sequoia_builds_for_the_same_tree(tmp_path: Path) -> None:
    """The literal map of a small tree, checked by hand against Sequoia's own construction, level by level."""
    out = tmp_path / "tree.pt"
    for _ in range(2):
        result = cli("export", BANK, "--to", "sequoia", "--tree", "n3-d2", "--out", out)
        assert result.exit_code == 0, result.output
        assert "size counts the root: 4" in result.stderr
        found = torch.load(out, weights_only=True)
        assert (found["roots"], found["branches"]) == ([[0], [1, 2], [3]], [[2], [1, 0], [0]])
        assert (found["Successors"], found["size"]) == ([[1, 2], [3], [], []], 4)
        assert found["depth"].tolist() == [0, 1, 1, 2]
        assert found["mask"].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
        before = out.read_bytes()
    assert out.read_bytes() == before
    assert cli("export", BANK, "--to", "sequoia", "--tree", 1).exit_code == 2


def test_a_switching_policy_becomes_its_best_static_tree_and_that_is_said() -> None:
    result = cli("export", BANK, "--to", "medusa")
    assert result.exit_code == 0
    assert result.stdout == "[[0], [1], [0, 0]]\n"  # the bank recommends a ladder, and its static tree is this one
    assert "an engine takes one tree" in " ".join(result.stderr.split())
    assert cli("export", BANK, "--to", "medusa", "--policy", "static").stdout == result.stdout
    assert "switches" not in cli("export", BANK, "--to", "medusa", "--policy", "static").stderr


def test_a_policy_that_makes_its_trees_while_decoding_is_refused_and_a_bank_that_recommends_it_gives_the_static_tree(
    tmp_path: Path,
) -> None:
    value = json.loads(BANK.read_text())
    value["policies"]["dynamic"] = {"edges": [], "sizes": [2], "drafted": [[0], [1], [0, 0]]}
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(value | {"recommended": "dynamic"}))
    refused = cli("export", path, "--to", "medusa", "--policy", "dynamic")
    assert refused.exit_code == 2
    assert "anew at every step" in " ".join(refused.stderr.split())
    taken = cli("export", path, "--to", "medusa")
    assert taken.stdout == cli("export", path, "--to", "medusa", "--policy", "static").stdout
    assert "the best static one is taken" in " ".join(taken.stderr.split())


def test_sglang_gets_the_depths_of_a_ladder() -> None:
    result = cli("export", BANK, "--to", "sglang")
    assert json.loads(result.stdout)["candidate_steps"] == [2, 4]
    assert "--speculative-eagle-topk 1" in result.stderr
    assert "--speculative-num-steps 2" in cli("export", BANK, "--to", "sglang", "--policy", "static").stdout
    with pytest.raises(UsageError):
        export_ladder([Topology()])


def test_export_writes_files_whole_and_json_with_the_notes(tmp_path: Path) -> None:
    out = tmp_path / "medusa.yml"
    result = cli("export", BANK, "--to", "trtllm", "--tree", "n3-d2", "--out", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert out.read_bytes() == b"- [0]\n- [1]\n- [0, 0]\n"
    document = json.loads(cli("export", BANK, "--to", "trtllm", "--tree", 1, "--json").stdout)
    assert (document["engine"], document["tree"]) == ("trtllm", "n3-d2")
    assert document["text"].encode() == out.read_bytes()
    assert document["notes"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--to", "tensorrt"), 2, "unknown engine"),
        (("--to", "medusa", "--tree", "oak"), 2, "no tree 'oak'"),
        (("--to", "medusa", "--tree", 9), 2, "no tree '9'"),
        (("--to", "medusa", "--policy", "magic"), 2, "no policy"),
        (("--to", "medusa", "--tree", "ar"), 2, "plain decoding"),
    ],
)
def test_what_cannot_be_exported_gets_a_sentence(words: tuple, code: int, text: str) -> None:
    result = cli("export", BANK, *words)
    assert result.exit_code == code
    assert text in result.stderr


def test_every_engine_has_notes_and_is_in_the_help() -> None:
    for engine in ENGINES:
        assert export_tree(UNIFORM, engine).notes
        assert engine in cli("export", "--help").stdout
