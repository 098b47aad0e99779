"""Laws of exports: the engines' exact syntax, refusals of trees that an engine would run wrongly, and the way back by import."""

from __future__ import annotations

import ast
import json
import random
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import cli, random_tree

from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.exports import ENGINES, export_ladder, export_tree
from entmtp_calib.imports import import_text
from entmtp_calib.topology import Node, Topology, chain, published_default

BANK = Path(__file__).parent / "golden" / "bank-v1.json"
SMALL = Topology(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
UNIFORM = Topology(((0,), (1,), (0, 0), (1, 0)))
FULL = Topology(tuple(node for depth in (1, 2, 3) for node in product(range(2), repeat=depth)))


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
    assert "up to 0.32" in " ".join(export_tree(SMALL, "vllm", "Medusa").notes)
    assert "up to 0.32" not in " ".join(export_tree(SMALL, "vllm").notes)
    assert "does not run" in " ".join(export_tree(SMALL, "vllm", "entmtp hydra").notes)
    assert "vLLM's tree does not run" in " ".join(export_tree(UNIFORM, "vllm", "Medusa", legacy=True).notes)
    assert "does not run" not in " ".join(export_tree(SMALL, "hydra", "Hydra mlp").notes)


def test_the_legacy_tree_of_vllm_is_uniform_or_refused() -> None:
    config = json.loads(export_tree(UNIFORM, "vllm", legacy=True).text)
    assert config == {"num_speculative_tokens": 4, "speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
    assert len(ast.literal_eval(config["speculative_token_tree"])) == config["num_speculative_tokens"]
    assert "as if they were a chain" in " ".join(export_tree(UNIFORM, "vllm", legacy=True).notes)
    assert "as if they were a chain" not in " ".join(export_tree(chain(3), "vllm", legacy=True).notes)
    with pytest.raises(ArtefactError, match="same number of children"):
        export_tree(SMALL, "vllm", legacy=True)
    with pytest.raises(UsageError, match="--legacy"):
        export_tree(SMALL, "medusa", legacy=True)


@pytest.mark.parametrize(("tree", "flags"), [(published_default(), (4, 10, 64)), (FULL, (3, 2, 11))])
def test_the_sglang_flags_ask_for_no_more_than_its_beam_can_hold(tree: Topology, flags: tuple[int, int, int]) -> None:
    """At every step its beam keeps `topk` nodes, which get `topk` guesses each; all of them and the root may be verified."""
    export = export_tree(tree, "sglang")
    words = export.text.split()
    steps, topk, tokens = (int(words[place]) for place in (3, 5, 7))
    beam, held = 1, 1
    for _ in range(steps):
        held += beam * topk
        beam = topk
    assert (steps, topk, tokens) == flags
    assert tokens == min(tree.size + 1, held)
    assert ("allow 11" in " ".join(export.notes)) == (tree == FULL)


def test_trees_that_an_engine_would_run_wrongly_are_refused() -> None:
    wide = Topology(tuple((rank,) for rank in range(11)))
    with pytest.raises(ArtefactError, match="guess 10"):
        export_tree(wide, "medusa")
    skipping = Topology(((0,), (1,), (1, 0)))  # Hydra would hang [1, 0] under [0]
    with pytest.raises(ArtefactError, match=r"\[1\] has children"):
        export_tree(skipping, "hydra")
    assert export_tree(skipping, "medusa").text
    assert "145 nodes beside" in " ".join(export_tree(Topology(tuple((rank,) for rank in range(145))), "sequoia").notes)
    with pytest.raises(UsageError, match="plain decoding"):
        export_tree(Topology(), "trtllm")
    with pytest.raises(UsageError) as error:
        export_tree(SMALL, "medsua")
    assert "medusa" in error.value.hint


def test_hydra_heads_that_are_not_grounded_get_a_note_exactly_when_their_guesses_are_dealt_wrongly() -> None:
    """They offer as many guesses a level as the tree uses, end to end, and find them as if every level had ten."""
    wide = Topology((*((rank,) for rank in range(12)), (0, 0)))
    trees = [published_default(), SMALL, UNIFORM, FULL, chain(1), chain(4), Topology(wide.nodes[:12]), wide]
    for tree in trees:
        widths = [1 + max(node[-1] for node in tree.nodes if len(node) == depth) for depth in range(1, tree.depth + 1)]
        offered = ["root", *((depth, rank) for depth, width in enumerate(widths, 1) for rank in range(width))]
        places = {node: 1 + 10 * (len(node) - 1) + node[-1] for node in tree.nodes}
        right = all(place < len(offered) and offered[place] == (len(node), node[-1]) for node, place in places.items())
        for heads, may_be in (("", True), ("Hydra mlp (hydra_lm_head.pt)", True), ("entmtp hydra++", False)):
            assert ("grounded" in " ".join(export_tree(tree, "hydra", heads).notes)) == (may_be and not right)


def _packed(node: Node) -> int:
    """Ranks in 4 bits each, shifted in a word of 32 bits, whose shifts start over at 32."""
    word = 0
    for place, rank in enumerate(reversed(node)):
        word |= rank << (4 * place % 32)
    return word


def test_trees_whose_nodes_tensorrt_llm_would_mix_up_are_refused() -> None:
    low = Topology((*chain(12).nodes, (*(0,) * 8, 1), (*(0,) * 11, 1)))
    wide = Topology((*((rank,) for rank in range(16)), (15, 0)))
    for tree in (published_default(), FULL, chain(16), low, wide):
        assert export_tree(tree, "trtllm").text
        assert len({(len(node), _packed(node)) for node in tree.nodes}) == tree.size
    guess = Topology(((0,), (1,), (1, 0), *((0, rank) for rank in range(17))))
    level = Topology((*chain(9).nodes, (1,), *((1, *(0,) * depth) for depth in range(1, 9)), (*(0,) * 8, 1)))
    for tree in (guess, level):
        assert len({(len(node), _packed(node)) for node in tree.nodes}) < tree.size
        with pytest.raises(ArtefactError, match="another node"):
            export_tree(tree, "trtllm")
    with pytest.raises(ArtefactError, match="would refuse"):
        export_tree(chain(17), "trtllm")


def test_a_list_for_other_programs_is_pointed_to_only_where_it_is_printed() -> None:
    twelve = Topology(tuple((rank,) for rank in range(12)))
    assert "--to medusa" in " ".join(export_tree(SMALL, "trtllm").notes)
    assert "--to medusa" not in " ".join(export_tree(twelve, "trtllm").notes)


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


def test_sglang_gets_the_depths_of_a_ladder_in_the_forms_of_its_old_and_new_versions() -> None:
    result = cli("export", BANK, "--to", "sglang")
    rule = json.loads(result.stdout)
    assert rule["1"] == {"candidate_steps": [0, 2, 4]}
    assert rule["candidate_steps"] == [2, 4]
    assert "--speculative-eagle-topk 1" in result.stderr
    assert "--speculative-num-steps 2" in cli("export", BANK, "--to", "sglang", "--policy", "static").stdout
    with_plain = export_ladder([Topology(), chain(1), SMALL])
    assert json.loads(with_plain.text)["1"] == {"candidate_steps": [0, 1, 3]}
    assert json.loads(with_plain.text)["candidate_steps"] == [1, 3]
    assert "0.5.14" in " ".join(with_plain.notes)
    assert "0.5.14" not in " ".join(export_ladder([chain(1), SMALL]).notes)


@pytest.mark.parametrize(("trees", "reason"), [([Topology()], "plain decoding only"), ([SMALL, chain(3)], "all trees .* 3 deep")])
def test_a_ladder_that_sglang_could_not_climb_is_refused(trees: list[Topology], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        export_ladder(trees)


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
