"""The command line's options on prompts: what is shown, recorded, dumped, refused and marked, on the tiny world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import byte_tokenizer, cli, tiny_model
from typer.testing import Result

from entmtp_calib import load_bank

SIZES = ("--search-prompts", 5, "--fit-prompts", 3, "--test-prompts", 2, "--max-new-tokens", 8, "--max-nodes", 4,
         "--max-depth", 2, "--dtype", "float32", "--device", "cpu")  # fmt: skip
STAGES = ("--trees", 2, "--recalibrate-prompts", 2, "--time-prompts", 2, "--rounds", 1, "--signal", "path_value_2")
TEMPLATE = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" \
           "<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"  # fmt: skip


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template that takes no system turn."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    tiny_model(vocab=257, positions=512, eos_token_id=0, initializer_range=0.25).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def conversations(folder: Path) -> Path:
    """Good and bad rows: twelve good ones with two questions each, and one of every fault."""
    good = [{"id": f"c{n}", "conversations": [{"from": who, "value": f" {who} {n} {k}\n"} for k in range(2)
                                              for who in ("human", "gpt")]} for n in range(12)]  # fmt: skip
    bad: list[Any] = [
        {"conversations": []},
        {"conversations": [{"from": "gpt", "value": "x"}]},
        {"conversations": ["hi"]},
        {"conversations": [{"from": "[/tool]", "value": "x"}]},
        {"conversations": [{"from": "human", "value": 7}]},
        {"conversations": [{"from": "human", "value": "x" * 5000}]},
        {"system": "s", "conversations": [{"from": "human", "value": "a"}]},
        None,
    ]
    path = folder / "talk.json"
    path.write_text(json.dumps([*bad, *good]))
    return path


def search(folder: Path, model: Path, heads: Path, task: object, *more: object) -> Result:
    return cli("search", "--out", folder / "run", "--model", model, "--heads", heads, "--task", task, *SIZES, *more)


def test_one_table_tells_what_became_of_every_row(tmp_path: Path, chat_folder: Path, tiny_heads: Path) -> None:
    task = conversations(tmp_path)
    result = search(tmp_path, chat_folder, tiny_heads, task, "--json")
    assert result.exit_code == 0, result.output
    rows = {row["what"]: row for row in json.loads(result.stdout)["prompts"]}
    assert {what: row["prompts"] for what, row in rows.items()} == {
        "kept": 10,
        "not needed": 2,
        "skipped: empty conversation": 1,
        "skipped: no user turn before the first answer": 1,
        "skipped: turn that is not an object": 1,
        "skipped: unknown role: [/tool]": 1,
        "skipped: turn without text": 1,
        "skipped: too long for the context": 1,
        "skipped: refused by the chat template: no system": 1,
        "skipped: row that is not an object": 1,
    }
    assert [rows[what]["rows"] for what in sorted(rows) if what.startswith("skipped")] == [[1], [2], [7], [8], [6], [3], [5], [4]]
    shown = search(tmp_path, chat_folder, tiny_heads, task)
    assert shown.exit_code == 0, shown.output
    assert "skipped: unknown role: [/tool]" in shown.stdout
    assert shown.stderr.count("skipped") == 0
    assert "Traceback" not in shown.output


def test_a_dump_is_what_was_used_and_the_choice_is_recorded(tmp_path: Path, chat_folder: Path, tiny_heads: Path) -> None:
    task = conversations(tmp_path)
    result = search(tmp_path, chat_folder, tiny_heads, task, "--turns", "all", "--dump-prompts", tmp_path / "dump.jsonl")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "dump.jsonl").read_text().splitlines()]
    assert [row["split"] for row in rows] == ["search"] * 5 + ["fit"] * 3 + ["test"] * 2
    homes: dict[str, set[str]] = {}
    for row in rows:
        assert byte_tokenizer().decode(row["ids"]) == row["text"]
        assert row["text"].startswith("<user> human ")
        assert row["text"].endswith("\n<assistant>")
        assert row["style"] == "chat"
        homes.setdefault(row["id"].partition("#")[0], set()).add(row["split"])
    assert all(len(parts) == 1 for parts in homes.values())
    assert any("<assistant> gpt" in row["text"] for row in rows)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["config"]["turns"] == "all"
    assert about["prompts"]["prompts_used"] == {"search": 5, "fit": 3, "test": 2}
    assert about["prompts"]["length_quantiles"]["max"] == max(len(row["ids"]) for row in rows)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--turns", "all"), "turns = first, not all"),
        (("--long-prompts", "cut"), "long_prompts = skip, not cut"),
        (("--prompt-style", "vicuna"), "prompt_style = auto, not vicuna"),
    ],
)
def test_a_run_of_other_options_is_refused_by_name(
    tmp_path: Path, chat_folder: Path, tiny_heads: Path, words: tuple[str, str], named: str
) -> None:
    task = conversations(tmp_path)
    assert search(tmp_path, chat_folder, tiny_heads, task).exit_code == 0
    result = search(tmp_path, chat_folder, tiny_heads, task, *words)
    assert result.exit_code == 3
    assert named in result.stderr.replace("\n", " ")


def test_long_prompts_are_skipped_or_cut_and_many_of_them_are_warned_of(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path
) -> None:
    task = tmp_path / "long.jsonl"
    lengths = [*[600] * 5, *range(20, 32)]
    task.write_text("".join(json.dumps({"prompt": "y" * length}) + "\n" for length in lengths))
    skipped = search(tmp_path / "a", tiny_folder, tiny_heads, task, "--json")
    rows = {row["what"]: row["prompts"] for row in json.loads(skipped.stdout)["prompts"]}
    assert "too long for the context: the figures speak for shorter ones" in skipped.stderr
    assert 0 < rows["skipped: too long for the context"] <= 5
    cut = search(tmp_path / "b", tiny_folder, tiny_heads, task, "--long-prompts", "cut",
                 "--dump-prompts", tmp_path / "d.jsonl", "--json")  # fmt: skip
    assert cut.exit_code == 0, cut.output
    rows = {row["what"]: row["prompts"] for row in json.loads(cut.stdout)["prompts"]}
    longest = max(len(json.loads(line)["ids"]) for line in (tmp_path / "d.jsonl").read_text().splitlines())
    assert longest == 512 - 8 - 4 - 1
    assert rows["kept, but cut"] > 0


def test_prompts_around_the_context_that_leave_no_room_are_all_left_out(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path
) -> None:
    task = tmp_path / "p.jsonl"
    lengths = [500, 511, 512, 513, 5000, *range(20, 26)]
    task.write_text("".join(json.dumps({"prompt": "y" * length}) + "\n" for length in lengths))
    result = search(tmp_path, tiny_folder, tiny_heads, task, "--json")
    rows = {row["what"]: row for row in json.loads(result.stdout)["prompts"]}
    assert (rows["kept"]["prompts"], rows["skipped: too long for the context"]["prompts"]) == (6, 5)
    assert sorted(rows["skipped: too long for the context"]["rows"]) == [1, 2, 3, 4, 5]
    result = search(tmp_path / "none", tiny_folder, tiny_heads, task, "--max-new-tokens", 512)
    assert result.exit_code == 2
    assert "leave no room for a prompt in 512 positions" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--task", "humaneval", "--turns", "all"), 2, "humaneval has none"),
        (("--task", "hf:nobody"), 2, "hf:OWNER/NAME"),
        (("--task", "humanevil"), 2, "humaneval"),
        (("--data", "x.jsonl"), 2, "name two sets"),
        (("--turns", "last"), 2, "'last'"),
        (("--long-prompts", "squeeze"), 2, "'squeeze'"),
        (("--prompt-style", "poem"), 2, "unknown prompt style"),
        (("--dump-prompts", "/"), 2, "--dump-prompts"),
        (("--task", "gsm8k", "--data", "no-such.jsonl"), 3, "no-such.jsonl"),
    ],
)
def test_what_can_be_refused_without_a_model_is(
    tmp_path: Path, prompt_file: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    result = search(tmp_path, tmp_path / "no-model", tmp_path / "no-heads", prompt_file, *words)
    assert result.exit_code == code, result.output
    assert text in result.stderr.replace("\n", " ")
    assert "loading" not in result.stderr


def test_a_signal_that_cannot_be_is_refused_before_the_hours_that_come_before_it(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    words = ("run", "--out", tmp_path / "run", "--heads", tiny_heads, "--task", prompt_file, *SIZES)
    result = cli(*words, "--model", tmp_path / "no-model", "--signal", "mood")
    assert result.exit_code == 2
    assert "mood" in result.stderr
    result = cli(*words, "--model", tiny_folder, "--signal", "path_value_9")
    assert result.exit_code == 2
    assert "needs 9 heads and there are 3" in result.stderr.replace("\n", " ")
    assert not (tmp_path / "run" / "frontier.json").exists()


def test_a_small_run_is_marked_in_every_table_and_in_its_bank_and_decodes_in_its_own_style(
    tmp_path: Path, chat_folder: Path, tiny_heads: Path
) -> None:
    task = conversations(tmp_path)
    out = tmp_path / "run"
    words = ("run", "--out", out, "--model", chat_folder, "--heads", tiny_heads, "--task", task, *SIZES, *STAGES,
             "--prompt-style", "vicuna", "--recalibrate-prompts", 9)  # fmt: skip
    result = cli(*words)
    assert result.exit_code == 0, result.output
    assert "recalibrate takes 9 prompts and the fit part has 3" in result.stderr.replace("\n", " ")
    titles = result.stdout.count("Frontier:") + sum(result.stdout.count(name) for name in ("Recalibration:", "Timing:", "Arms on",
                                                                                         "Bank for", "Policies on"))  # fmt: skip
    assert titles == 6
    assert result.stdout.replace("\n", " ").count("too small to trust") == 7
    bank = json.loads((out / "bank.json").read_text())
    assert bank["too_small_to_trust"] is True
    assert bank["prompts"]["prompts_used"] == {"search": 5, "fit": 3, "test": 2, "recalibrate": 3, "time": 2}
    assert set(bank["prompts"]["length_quantiles"]) == {"min", "q25", "median", "q75", "q90", "max"}
    assert bank["template"]["style"] == "vicuna"
    document = json.loads(cli(*words, "--json").stdout)
    assert document["status"] == "nothing to do"
    shown = cli("show", out)
    assert shown.stdout.replace("\n", " ").count("too small to trust") == 3
    decoded = cli("decode", "--bank", out / "bank.json", "--dtype", "float32", "--max-new-tokens", 4, "--json", "Hi")
    assert decoded.exit_code == 0, decoded.output
    wanted = len("A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
                 "and polite answers to the user's questions. USER: Hi ASSISTANT:")  # fmt: skip
    assert json.loads(decoded.stdout)["statistics"]["prompt_tokens"] == wanted
    bank["template"]["hash"] = "sha256:another"
    (tmp_path / "bank.json").write_text(json.dumps(bank))
    assert cli("decode", "--bank", tmp_path / "bank.json", "--dtype", "float32", "Hi").exit_code == 3


def test_a_bank_from_before_the_mark_loads_unmarked(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "bank-v1.json"
    assert load_bank(golden).too_small_to_trust is False
    assert "too small to trust" not in cli("show", golden).stdout


def test_a_search_says_what_it_cost(tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> None:
    for schedule, depths in (("trace", set()), ("joint", {"1", "2"}), ("paper", {"1", "2"})):
        words = ("--schedule", schedule)
        result = search(tmp_path / schedule, tiny_folder, tiny_heads, prompt_file, *words, "--json")
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert document["search_seconds"] > 0
        assert set(document["target_forwards"]) == depths
        assert all(count > 0 for count in document["target_forwards"].values())
        again = search(tmp_path / schedule, tiny_folder, tiny_heads, prompt_file, *words)
        assert ("target forwards of joint rollouts: depth 1" in again.stderr) == bool(depths)
