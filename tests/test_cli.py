"""The command line on the tiny world: every stage, JSON, resuming, and what a user can get wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import cli

from entmtp_calib import BankTree, Hysteresis, Ladder, Static, Topology, load_bank
from entmtp_calib.calibrate.bench import check_arms
from entmtp_calib.topology import chain

SIZES = ("--search-prompts", 12, "--fit-prompts", 6, "--test-prompts", 4, "--max-new-tokens", 24, "--max-nodes", 8,
         "--max-depth", 3, "--dtype", "float32", "--device", "cpu")  # fmt: skip
STAGES = ("--trees", 3, "--recalibrate-prompts", 2, "--time-prompts", 2, "--rounds", 2, "--signal", "path_value_2")


def start(out: Path, model: Path, heads: Path, task: Path) -> list[object]:
    return ["--out", out, "--model", model, "--heads", heads, "--task", task, *SIZES]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> Path:
    """A run from one command."""
    out = tmp_path_factory.mktemp("runs") / "run"
    result = cli("run", *start(out, tiny_folder, tiny_heads, prompt_file), *STAGES)
    assert result.exit_code == 0, result.output
    for words in ("Frontier", "Recalibration", "Timing", "Bank for", "Policies", "same text"):
        assert words in result.stdout
    assert "A/A check" in result.stderr
    return out


@pytest.fixture(scope="module")
def bank_file(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's bank with trees that switch: on a model this small, plain decoding alone is the honest bank."""
    found = load_bank(finished / "bank.json")
    figures = found.trees[0].figures
    wide = Topology(((0,), (1,), (2,), (3,), (0, 0), (1, 0), (0, 0, 0)))
    trees = (found.trees[0], BankTree("chain", chain(2), figures), BankTree("wide", wide, figures))
    policies = {"static": Static(2), "ladder": Ladder((0.002, 0.02), (0, 1, 2)), "hysteresis": Hysteresis(0.02, 0.002, 1, 2)}
    path = tmp_path_factory.mktemp("banks") / "bank.json"
    replace(found, trees=trees, policies=policies, recommended="ladder").save(path)
    return path


def test_a_second_run_does_nothing_and_says_so(finished: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    result = cli("run", *start(finished, tiny_folder, tiny_heads, prompt_file), *STAGES)
    assert result.exit_code == 0
    assert "nothing to do" in result.stderr
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}


def test_check_makes_a_run_again_and_says_what_differs(finished: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name != "log.txt"}
    result = cli("run", "--check", finished)
    assert result.exit_code == 0, result.output
    assert "The same again: search, recalibrate, fit-thresholds" in result.stdout
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name != "log.txt"}
    changed = tmp_path / "changed"
    shutil.copytree(finished, changed)
    bank = json.loads((changed / "bank.json").read_text())
    bank["trees"][0]["mean_accept"] += 0.5
    (changed / "bank.json").write_text(json.dumps(bank))
    result = cli("run", "--check", changed, "--json")
    assert result.exit_code == 4
    assert ["mean_accept" in sentence for sentence in json.loads(result.stdout)["differences"]] == [True]
    frontier = json.loads((changed / "frontier.json").read_text())
    frontier["growths"][0]["scores"][0] += 0.25
    (changed / "frontier.json").write_text(json.dumps(frontier))
    result = cli("run", "--check", changed)
    assert result.exit_code == 4
    assert "differs: depth at most 1: with 1 nodes" in result.stdout
    assert "--check goes without --seed" in cli("run", "--check", changed, "--seed", 3).stderr
    assert cli("run").exit_code == 2


def test_stages_one_by_one_give_the_same_frontier(
    finished: Path, tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    out = tmp_path / "staged"
    for words in (
        ("search", *start(out, tiny_folder, tiny_heads, prompt_file)),
        ("recalibrate", out, "--trees", 3, "--prompts", 2),
        ("time", out, "--rounds", 2, "--prompts", 2),
        ("fit-thresholds", out, "--signal", "path_value_2"),
    ):
        result = cli(*words, "--json")
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert document["format"] == f"entmtp-{words[0]}"
        assert document["version"] == 1
    assert (out / "frontier.json").read_bytes() == (finished / "frontier.json").read_bytes()
    assert (out / "recalibration.jsonl").read_bytes()[100:] == (finished / "recalibration.jsonl").read_bytes()[100:]


def test_other_options_in_the_same_folder_are_refused_by_name(
    finished: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    result = cli("search", *start(finished, tiny_folder, tiny_heads, prompt_file), "--max-nodes", 9)
    assert result.exit_code == 3
    assert "max_nodes = 8, not 9" in result.stderr
    assert "--fresh" in result.stderr
    result = cli("recalibrate", finished, "--trees", 2)
    assert result.exit_code == 3
    result = cli("time", finished, "--seed", 7)
    assert result.exit_code == 2


@pytest.mark.parametrize("policy", ["auto", "static", "ladder", "hysteresis", "ar"])
def test_decode_gives_the_same_text_for_every_policy(bank_file: Path, policy: str) -> None:
    words = ("decode", "--bank", bank_file, "--max-new-tokens", 40, "--dtype", "float32")
    result = cli(*words, "--policy", policy, "--json", "Q7: what?")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ids"] == json.loads(cli(*words, "--policy", "ar", "--json", "Q7: what?").stdout)["ids"]
    assert document["statistics"]["tokens"] == len(document["ids"])
    streamed = cli(*words, "--policy", policy, "Q7: what?")
    assert streamed.stdout == document["text"] + "\n"
    assert "tokens/step" in streamed.stderr


def test_decode_reads_files_and_standard_input(finished: Path, tmp_path: Path) -> None:
    from entmtp_calib.commands import app
    from typer.testing import CliRunner

    (tmp_path / "prompt.txt").write_bytes(b"Q7: what?")
    words = ["decode", "--bank", str(finished / "bank.json"), "--max-new-tokens", "12", "--dtype", "float32", "--quiet"]
    texts = {
        CliRunner().invoke(app, [*words, "Q7: what?"]).stdout,
        CliRunner().invoke(app, [*words, "--file", str(tmp_path / "prompt.txt")]).stdout,
        CliRunner().invoke(app, words, input="Q7: what?").stdout,
    }
    assert len(texts) == 1


def test_verify_finds_every_text_identical_in_float32(bank_file: Path) -> None:
    result = cli("verify", bank_file, "--prompts", 3, "--dtype", "float32", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["verification"]
    assert all(row["identical"] == row["prompts"] == 3 for row in rows)


def test_verify_fails_when_the_decoder_is_wrong(bank_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An acceptance that takes one draft too many must not pass."""
    import entmtp_calib.engine.decoder as decoder

    sound = decoder.accept

    def greedy(layout, right, score):
        return sound(layout, right | True, score)

    monkeypatch.setattr(decoder, "accept", greedy)
    result = cli("verify", bank_file, "--prompts", 2, "--dtype", "float32")
    assert result.exit_code == 4
    assert "differ from plain decoding" in result.stderr


def test_bench_puts_the_bank_beside_plain_decoding_and_transformers(
    bank_file: Path, prompt_file: Path, tiny_heads: Path, tmp_path: Path
) -> None:
    result = cli("bench", bank_file, "--prompts", 3, "--rounds", 1, "--max-new-tokens", 16, "--dtype", "float32",
                 "--out", tmp_path / "b", "--also", tiny_heads, "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    arms = {row["arm"]: row for row in document["bench"]}
    oracle = arms.pop("oracle (replay)")
    assert set(arms) >= {"ar", "ar-again", "static", "ladder", "hysteresis", "generate", "prompt lookup"}
    assert oracle["speedup"] >= arms["static"]["speedup"]
    kept = load_bank(bank_file).splits["test"]["ids"]
    assert [row["prompt"] for row in document["runs"] if row["arm"] == "ar" and row["round"] == 0] == kept[:3]
    texts = {(row["prompt"], row["ids"]) for row in document["runs"]}
    assert len(texts) == 3  # in float32 every arm writes the same
    assert {(row["same_text"], round(row["logp"], 4)) for row in arms.values()} == {(1.0, round(arms["ar"]["logp"], 4))}
    assert arms["ar"]["logp"] < 0
    assert (arms["static"]["nodes"], arms["hysteresis"]["nodes"], arms["ar"]["nodes"]) == (7, 7, 0)
    assert (arms["ar"]["tokens_per_step"], arms["generate"]["tokens_per_step"]) == (1.0, None)  # transformers does not tell
    assert (tmp_path / "b" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "b" / "bench.json").read_text())["runs"] == document["runs"]
    for name, arm in arms.items():
        seconds = {
            label: sum(row["seconds"] for row in document["runs"] if row["arm"] == label and row["round"] >= 0)
            for label in (name, "static")
        }
        if name != "static":  # one text in every arm, so tokens cancel
            assert arm["over_static"] == pytest.approx(seconds["static"] / seconds[name])
            assert arm["over_static_low"] < arm["over_static"] < arm["over_static_high"]
    assert len((tmp_path / "b" / "bench.csv").read_text().splitlines()) == 1 + len(document["bench"])


def test_bench_times_only_the_arms_that_are_asked_for(bank_file: Path) -> None:
    words = "--prompts", 1, "--rounds", 1, "--max-new-tokens", 4, "--dtype", "float32", "--json"
    result = cli("bench", bank_file, *words, "--only", "ladder")
    assert {row["arm"] for row in json.loads(result.stdout)["runs"]} == {"ar", "ar-again", "ladder"}
    result = cli("bench", bank_file, *words, "--only", "lader")
    assert result.exit_code == 2
    assert "ladder" in result.stderr


def test_every_arm_of_a_bench_has_a_name_that_is_known_before_anything_is_loaded(
    bank_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {row["arm"] for row in json.loads(cli("bench", bank_file, "--prompts", 1, "--rounds", 1, "--max-new-tokens", 4,
                                                  "--dtype", "float32", "--json").stdout)["runs"]}  # fmt: skip
    check_arms([*names, "more, default-63"], load_bank(bank_file), ["more"])
    monkeypatch.setattr("entmtp_calib.engine.pair.load_pair", lambda *_: pytest.fail("something was loaded"))
    assert "Did you mean generate?" in cli("bench", bank_file, "--only", "genrate").stderr


def test_bench_says_where_prompts_may_have_been_seen(bank_file: Path, prompt_file: Path, tmp_path: Path) -> None:
    words = ("--prompts", 2, "--rounds", 1, "--max-new-tokens", 4, "--dtype", "float32")
    document = json.loads(bank_file.read_text())
    document["splits"]["test"].pop("ids")
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert "does not say which prompts" in cli("bench", tmp_path / "old.json", *words).stderr
    (tmp_path / "other.jsonl").write_text('{"prompt": "another"}\n{"prompt": "and one more"}\n')
    result = cli("bench", bank_file, "--task", tmp_path / "other.jsonl", *words)
    assert result.exit_code == 0, result.output
    assert "warning" not in result.stderr


def test_show_tells_the_state_and_draws_a_tree(finished: Path, bank_file: Path) -> None:
    document = json.loads(cli("show", finished, "--json").stdout)
    assert {row["stage"] for row in document["stages"]} == {"search", "recalibrate", "time", "fit-thresholds"}
    assert document["stages"][-1] | {"file": "bank.json", "state": "complete"} == document["stages"][-1]
    assert document["trees"]["ar"] == []
    drawn = cli("show", bank_file, "--tree", "wide")
    assert "└─ 3" in drawn.stdout
    assert cli("show", finished / "bank.json", "--tree", "oak").exit_code == 2


def test_env_reports_versions_and_the_reason_for_the_dtype() -> None:
    document = json.loads(cli("env", "--json").stdout)
    assert "torch" in document["versions"]
    assert document["placement"]["reason"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--max-nodes", 0), 2, "--max-nodes is 0"),
        (("--max-new-tokens", -3), 2, "--max-new-tokens is -3"),
        (("--max-depth", 9), 3, "there are 3 heads"),
        (("--model", "no-such-model"), 3, "there is no model"),
        (("--heads", "no-such-heads"), 3, "no heads"),
        (("--task", "humanevil"), 2, "humaneval"),
        (("--prompt-style", "poem"), 2, "unknown prompt style"),
        (("--prompt-style", "chat"), 2, "no chat template"),
        (("--dtype", "float8"), 2, "unknown dtype"),
    ],
)
def test_bad_options_get_a_sentence_and_the_right_code(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path, words: tuple, code: int, text: str
) -> None:
    result = cli("search", *start(tmp_path / "run", tiny_folder, tiny_heads, prompt_file), *words)
    assert result.exit_code == code, result.output
    assert text in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_swapped_model_and_heads_are_told_apart(tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> None:
    result = cli("search", *start(tmp_path / "run", tiny_heads, tiny_folder, prompt_file))
    assert result.exit_code == 3
    assert "Did you mean --model?" in result.stderr
    result = cli("search", *start(tmp_path / "run", tiny_heads, tiny_heads, prompt_file))
    assert result.exit_code == 3
    assert "Did you mean --heads?" in result.stderr


def test_empty_and_useless_data_are_refused(tmp_path: Path, tiny_folder: Path, tiny_heads: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert cli("search", *start(tmp_path / "a", tiny_folder, tiny_heads, empty)).exit_code == 3
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "x" * 5000}) + "\n")
    result = cli("search", *start(tmp_path / "b", tiny_folder, tiny_heads, long))
    assert result.exit_code == 3
    assert "too few" in result.stderr


def test_foreign_and_broken_banks_are_refused(finished: Path, tmp_path: Path) -> None:
    bank = json.loads((finished / "bank.json").read_text())
    bank["target"]["identity"] = "sha256:other"
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps(bank))
    result = cli("decode", "--bank", foreign, "--dtype", "float32", "hello")
    assert result.exit_code == 3
    assert "other model" in result.stderr
    (tmp_path / "torn.json").write_bytes((finished / "bank.json").read_bytes()[:400])
    assert cli("decode", "--bank", tmp_path / "torn.json", "hello").exit_code == 3
    assert cli("decode", "--bank", tmp_path / "absent.json", "hello").exit_code == 3
    assert cli("decode", "--bank", finished / "bank.json", "--policy", "magic", "hello").exit_code == 2
    assert cli("decode", "--bank", finished / "bank.json", "").exit_code == 2
    assert cli("decode", "--bank", finished / "bank.json", "--max-new-tokens", "-1", "hello").exit_code == 2


def test_a_bank_timed_elsewhere_works_and_strict_refuses_it(finished: Path, tmp_path: Path) -> None:
    bank = json.loads((finished / "bank.json").read_text())
    bank["measured"]["cpu"] = "an abacus"
    other = tmp_path / "bank.json"
    other.write_text(json.dumps(bank))
    words = ("decode", "--bank", other, "--dtype", "float32", "--max-new-tokens", 4, "hello")
    result = cli(*words)
    assert result.exit_code == 0
    assert "timed elsewhere (cpu an abacus)" in result.stderr
    assert cli(*words, "--strict").exit_code == 3


def test_missing_stages_name_the_command_that_makes_them(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    out = tmp_path / "run"
    assert cli("recalibrate", out).exit_code == 3
    assert cli("search", *start(out, tiny_folder, tiny_heads, prompt_file)).exit_code == 0
    result = cli("time", out)
    assert result.exit_code == 3
    assert "entmtp recalibrate" in result.stderr
    (out / "run.json").write_text('{"format": "entmtp-r')
    result = cli("recalibrate", out)
    assert result.exit_code == 3
    assert "cut short" in result.stderr


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "entmtp_calib", *map(str, words)]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def test_a_killed_run_goes_on_to_the_same_bytes(
    finished: Path, tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    """SIGKILL at several moments; then the deterministic files are those of the run that was never killed."""
    out = tmp_path / "killed"
    words = _command("run", *start(out, tiny_folder, tiny_heads, prompt_file), *STAGES)
    for marker in ("rollouts/search/00000.npz", "recalibration.jsonl", "timings.jsonl"):
        process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (out / marker).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with (out / "timings.jsonl").open("ab") as file:
        file.write(b'{"arm": "ar", "prom')
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("frontier.json", "recalibration.jsonl", "rollouts/search/00003.npz", "rollouts/test/00000.npz"):
        assert (out / name).read_bytes() == (finished / name).read_bytes(), name
    ours, theirs = (json.loads((folder / "bank.json").read_text()) for folder in (out, finished))
    for part in ("target", "heads", "template", "acceptance", "splits", "limits"):
        assert ours[part] == theirs[part]


def _heeds_interrupts() -> None:
    """A shell's background jobs ignore interrupts, and so would what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    out = tmp_path / "run"
    words = _command("run", *start(out, tiny_folder, tiny_heads, prompt_file), *STAGES, "--rounds", 500, "--json")
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=_heeds_interrupts)  # fmt: skip
    deadline = time.monotonic() + 60
    while not (out / "timings.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again" in stderr
    assert json.loads(stdout)["status"] == "interrupted"


def test_a_killed_training_ends_in_the_same_heads(tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> None:
    out = tmp_path / "tiny-hydra"
    words = _command("train-heads", "--out", out, "--base", tiny_folder, "--prompts", prompt_file, "--heads", 3, "--layers", 1,
                     "--max-new-tokens", 24, "--steps", 250, "--batch", 1024, "--rate", 0.003,
                 "--dtype", "float32", "--quiet")  # fmt: skip
    for marker in ("text/00000.npz", "states/00000.safetensors", "training-*/checkpoint.pt"):
        process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not list((out / "work").glob(marker)) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out / "heads.safetensors").read_bytes() == (tiny_heads / "heads.safetensors").read_bytes()


def test_the_command_line_and_the_package_load_nothing_heavy_until_it_is_used() -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)"
    for code in (f"import entmtp_calib.commands, sys; assert not {heavy}",
                 f"import entmtp_calib, sys; assert set(entmtp_calib.__all__) <= set(dir(entmtp_calib)); assert not {heavy}",
                 "import entmtp_calib\nfor name in entmtp_calib.__all__: getattr(entmtp_calib, name)"):  # fmt: skip
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_command_and_option_has_help() -> None:
    import typer.main
    from entmtp_calib.commands import app

    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert command.help, name
        names = {option for parameter in command.params for option in parameter.opts}
        assert {"--json", "--seed", "--device", "--dtype"} <= names, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), (name, parameter.name)
