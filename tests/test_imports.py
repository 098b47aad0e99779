"""Laws of imports: what is read, what is added, what is refused, and that nothing is evaluated."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import cli, random_tree
from small_banks import small_bank

from entmtp_calib.errors import ArtefactError
from entmtp_calib.imports import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_LABEL,
    MAX_NODES,
    Imported,
    import_text,
    load_trees,
    trees_to_json,
)
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, chain, published_default

WANTED = Topology(((0,), (1,), (0, 0), (0, 1)))


@pytest.mark.parametrize(
    "text",
    [
        "[[0], [0, 0], [1], [0, 1]]",
        "[(0,), (1,), (0, 0), (0, 1)]",
        "((0,), (0, 0), (0, 1), (1,))",
        "- [0]\n- [0, 0]\n- [1]\n- [0, 1]\n",
        "# chosen by hand\r\n- [0]\r\n- [1]\r\n- [0, 0]\r\n- [0, 1]\r\n",
        "- - 0\n- - 1\n- - 0\n  - 0\n- - 0\n  - 1\n",
        "---\n- [0]\n- [1]\n- [0, 0]\n- [0, 1]\n",
        "# Python\nimport os\ntree = [[0], [1], [0, 0], [0, 1]]\n",
        "tree: [[0], [1], [0, 0], [0, 1]]\n",
        '{"tree": [[0], [1], [0, 0], [0, 1]]}',
        '{"num_speculative_tokens": 4, "speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1)]"}',
        '"[(0,), (1,), (0, 0), (0, 1)]"',
        "[\n  [0],  # the first guess\n  [1], [0, 0],\n  [0, 1],\n]\n",
        "[[0], [1], [0, 0], [0, 1],]",
        "    choices=[[0], [1], [0, 0], [0, 1]],\n",
        "choices: list[list[int]] = [[0], [1], [0, 0], [0, 1]]\nmore += [[7]]\n",
        "sizes = [4, 2]\nnothing = []\ntree = [[0], [1], [0, 0], [0, 1]]\n",
        "config:\n  decoding_type: Medusa\n  medusa_choices:\n  - [0]\n  - [1]\n  - [0, 0]\n  - [0, 1]\n  heads: [4]\n",
        '{"config": {"eagle_choices": "[[0], [1], [0, 0], [0, 1]]"}}',
        '{\n\t"tree": [[0], [1], [0, 0], [0, 1]],\n\t"greedy": true\n}\n',
        "\ufeff[[0], [1],\r\n [0, 0], [0, 1]]\r\n",
    ],
)
def test_python_json_and_yaml_mean_the_same_tree(text: str) -> None:
    (found,) = import_text(text, "tree")
    assert found.topology == WANTED
    assert found.added == ()


def test_leaves_alone_are_closed_and_what_was_added_is_known() -> None:
    (found,) = import_text("[[0, 0, 0], [0, 1], [1]]", "leaves")
    assert found.topology.nodes == ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))
    assert found.added == ((0,), (0, 0))


def test_the_leaves_of_any_tree_give_the_tree() -> None:
    rng = random.Random(1)
    for tree in [published_default(), chain(5), *(random_tree(rng, rng.randint(1, 60)) for _ in range(30))]:
        parents = {node[:-1] for node in tree.nodes}
        leaves = [node for node in tree.nodes if node not in parents]
        rng.shuffle(leaves)
        (found,) = import_text(str([list(node) for node in leaves]), "tree")
        assert found.topology == tree.sorted()
        assert set(found.added) | set(leaves) == set(tree.nodes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0], [2]]", r"gap: it has \[2\] and not \[1\]"),
        ("[[1, 0]]", r"gap: it has \[1\] and not \[0\]"),
        ("[[0], [0]]", "twice"),
        ("[[0], (0,)]", "twice"),
        ("[[0], []]", "empty node"),
        ("[]", "is empty"),
        ("[0, 1]", "type int where a node"),
        ('{"1": {"candidate_steps": [0, 2]}}', "candidate_steps holds"),
        ("[[0, [0, 1]], [1]]", "type list for a child rank"),
        ("[[0], [1000000000]]", "1000000000 for a child rank"),
        ('{"format": "entmtp-bank", "trees": [{"label": "a"}]}', "a file of this tool"),
        ("  \n\t\n# nothing\n", "no node list"),
        ("[[0], [True]]", "child rank"),
        ("[[0], [-1]]", "child rank"),
        ("[[0.0]]", "child rank"),
        ("[['0']]", "child rank"),
        ("[[0x" + "f" * 9000 + "]]", "child rank"),
        ("", "no node list"),
        ("hello", "no node list"),
        ("a = 1\nb = 'x'\n", "no node list"),
        ("{unbalanced", "neither Python nor JSON nor YAML"),
        ("[" * 5000, "neither Python nor JSON nor YAML"),
        ("x" * (MAX_CHARACTERS + 1), "too many"),
        (str([[0] * (MAX_DEPTH + 1)]), "deep"),
        (str([[rank] for rank in range(MAX_NODES + 1)]), "the most"),
        (str([[rank, *[0] * 60] for rank in range(100)]), "implies"),
    ],
)
def test_what_is_no_tree_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        import_text(text, "tree")


@pytest.mark.parametrize(
    "text",
    ["__import__('os').mkdir('made')", "[[0], __import__('os').mkdir('made')]", "tree = __import__('os').mkdir('made')",
     "- !!python/object/apply:os.mkdir [made]"],
)  # fmt: skip
def test_nothing_is_evaluated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtefactError):
        import_text(text, "tree")
    assert not Path("made").exists()


def test_yaml_that_refers_to_itself_is_refused_quickly() -> None:
    pairs = list(zip("abcdefgh", "bcdefghi", strict=True))
    bomb = "a: &a [[0]]\n" + "".join(f"{x}: &{x} [{', '.join([f'*{y}'] * 9)}]\n" for y, x in pairs)
    with pytest.raises(ArtefactError):
        import_text(bomb, "tree")
    keys = "".join(f"{x}: &{x} {{{', '.join(f'{n}: *{y}' for n in range(9))}}}\n" for y, x in pairs)
    assert len(import_text("a: &a [[0]]\n" + keys, "tree")) < 10**4


def test_several_named_lists_are_several_trees(tmp_path: Path) -> None:
    file = tmp_path / "choices.py"
    file.write_text("first = [[0], [1]]\nsecond = [[0], [0, 0]]\n")
    out = tmp_path / "trees.json"
    assert cli("import", file, "--out", out).exit_code == 0
    assert list(load_trees(out)) == ["first", "second"]
    assert cli("import", file, "--out", out, "--label", "second").exit_code == 0
    assert load_trees(out) == {"second": chain(2)}
    assert cli("import", file, "--out", out, "--label", "third").exit_code == 2
    file.write_text("first = [[0], [2]]\nsecond = [[0], [0, 0]]\n")
    assert cli("import", file, "--out", out).exit_code == 3
    assert cli("import", file, "--out", out, "--label", "second").exit_code == 0  # what else the file has does not matter


def test_import_says_what_it_added_and_names_trees(tmp_path: Path) -> None:
    file = tmp_path / "leaves.yml"
    file.write_bytes(b"\xef\xbb\xbf- [0, 0]\r\n- [1]\r\n")  # as Windows editors write it
    out = tmp_path / "trees.json"
    result = cli("import", file, "--out", out)
    assert result.exit_code == 0, result.output
    assert "leaves: 1 nodes were only implied and are added: [0]" in result.stderr
    assert load_trees(out) == {"leaves": Topology(((0,), (1,), (0, 0)))}
    document = json.loads(cli("import", file, "--out", out, "--label", "mine", "--json").stdout)
    assert document["trees"] == [{"tree": "mine", "nodes": 3, "depth": 2, "added": 1, "added_nodes": [[0]]}]
    file.write_text("- [0]\n- [2]\n")
    before = out.read_bytes()
    assert cli("import", file, "--out", out).exit_code == 3
    assert cli("import", tmp_path / "absent.yml", "--out", out).exit_code == 3
    assert out.read_bytes() == before


def test_bank_to_engine_to_tree_file_to_engine_keeps_every_byte(tmp_path: Path) -> None:
    bank = Path(__file__).parent / "golden" / "bank-v1.json"
    for engine in ("medusa", "hydra", "trtllm"):
        first, trees, second = (tmp_path / f"{engine}-{name}" for name in ("a.txt", "trees.json", "b.txt"))
        assert cli("export", bank, "--to", engine, "--tree", "default-63", "--out", first).exit_code == 0
        assert cli("import", first, "--out", trees, "--label", "medusa-63").exit_code == 0
        assert cli("export", trees, "--to", engine, "--out", second).exit_code == 0
        assert first.read_bytes() == second.read_bytes()
        assert load_trees(trees) == {"medusa-63": published_default().sorted()}
    assert cli("export", trees, "--to", "medusa", "--policy", "ladder").exit_code == 2


@pytest.mark.parametrize("label", ["ar", "default-63", "7", " ", "two\nlines", "x" * 61])
def test_names_that_would_confuse_are_refused(label: str) -> None:
    with pytest.raises(ArtefactError):
        trees_to_json([Imported(label, chain(1))])


@pytest.mark.parametrize(
    "change",
    [{"format": "entmtp-bank"}, {"version": 2}, {"trees": []}, {"trees": [{"nodes": [[0]]}]},
     {"trees": [{"label": "a", "nodes": [[1]]}]}, {"trees": [{"label": "a", "nodes": [[0]]}] * 2}],
)  # fmt: skip
def test_strange_tree_files_are_refused(change: dict, tmp_path: Path) -> None:
    path = tmp_path / "trees.json"
    path.write_text(json.dumps(trees_to_json([Imported("a", chain(2))]) | change))
    with pytest.raises(ArtefactError):
        load_trees(path)


def test_the_trees_of_a_bank_can_be_measured_beside_a_runs_own(tmp_path: Path) -> None:
    bank = small_bank()
    bank.save(tmp_path / "bank.json")
    assert load_trees(tmp_path / "bank.json") == {"humaneval n3-d2": bank.trees[1].topology}
    replace(bank, task=f"/data/{'long ' * 40}.jsonl").save(tmp_path / "bank.json")
    assert max(map(len, load_trees(tmp_path / "bank.json"))) <= MAX_LABEL
    plain = replace(bank, trees=bank.trees[:1], policies={"static": Static(0)}, recommended="static")
    plain.save(tmp_path / "bank.json")
    with pytest.raises(ArtefactError, match="no tree of its own"):
        load_trees(tmp_path / "bank.json")
