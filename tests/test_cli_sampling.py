"""Runs at a temperature above 0 and with stop strings, from the command line, and runs shared by two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cli

SMALL = ("--search-prompts", 4, "--fit-prompts", 3, "--test-prompts", 2, "--max-new-tokens", 24, "--max-nodes", 8, "--trees", 2,
         "--recalibrate-prompts", 2, "--time-prompts", 1, "--rounds", 1, "--signal", "path_value_2",
         "--dtype", "float32")  # fmt: skip


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "sampled"
    result = cli("run", "--out", out, "--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file, "--quiet",
                 "--temperature", 0.8, "--top-k", 40, *SMALL)  # fmt: skip
    assert result.exit_code == 0, result.output
    return out / "bank.json"


def test_a_bank_made_by_sampling_says_so_and_is_exact(sampled: Path) -> None:
    acceptance = json.loads(sampled.read_text())["acceptance"]
    assert acceptance == {"rule": "exact", "temperature": 0.8, "top_k": 40, "top_p": 1.0, "coupled": True}
    result = cli("verify", sampled, "--prompts", 2, "--max-new-tokens", 20, "--dtype", "float32", "--json", "--seed", 5)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["verification"]
    assert all(row["identical"] == 2 for row in rows)


def test_one_seed_gives_one_text_whatever_the_tree(sampled: Path) -> None:
    def text(*words: object) -> str:
        result = cli("decode", "--bank", sampled, "Hello", "--max-new-tokens", 30, "--json", *words)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["text"]

    assert text("--seed", 1) == text("--seed", 1, "--policy", "ar") == text("--seed", 1, "--policy", "ladder")
    assert text("--seed", 1) != text("--seed", 2)


def test_bench_of_a_sampling_bank_has_only_arms_that_draw_its_text(sampled: Path) -> None:
    result = cli("bench", sampled, "--prompts", 2, "--rounds", 1, "--max-new-tokens", 12, "--dtype", "float32", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert "generate" not in {row["arm"] for row in document["bench"]}
    assert len({(row["prompt"], row["ids"]) for row in document["runs"]}) == 2


def test_answers_end_at_a_stop_string(sampled: Path) -> None:
    words = ("decode", "--bank", sampled, "Hello", "--max-new-tokens", 40, "--json")
    whole = json.loads(cli(*words).stdout)["text"]
    stop = whole[8:10]
    cut = json.loads(cli(*words, "--stop", stop).stdout)
    assert stop in cut["text"]
    assert len(cut["text"]) <= whole.index(stop) + 2 * len(stop)
    assert cut["statistics"]["ended_by"] == "stop"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--top-k", 5), "do nothing at temperature 0"),
        (("--temperature", 1, "--top-p", 1.5), "top-p"),
        (("--stop", ""), "--stop"),
    ],
)
def test_senseless_options_are_refused_before_a_model_is_loaded(
    tmp_path: Path, prompt_file: Path, words: tuple[object, ...], message: str
) -> None:
    result = cli("search", "--out", tmp_path / "r", "--model", "nowhere", "--heads", "nothing", "--task", prompt_file, *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_two_processes_write_the_bytes_of_one(tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> None:
    options = ["--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file, "--quiet", "--search-prompts", 40,
               "--fit-prompts", 3, "--test-prompts", 2, "--max-new-tokens", 24, "--max-nodes", 8,
               "--dtype", "float32"]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ENTMTP_DEBUG": "1"}
    launch = {"one": [sys.executable, "-m", "entmtp_calib"],
              "two": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                      "-m", "entmtp_calib"]}  # fmt: skip
    for name, start in launch.items():
        for stage in (["search", "--out", tmp_path / name, *options], ["recalibrate", tmp_path / name, "--trees", 2, "--quiet"]):
            done = subprocess.run([*map(str, [*start, *stage])], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    for file in ("frontier.json", "recalibration.jsonl", *(f"rollouts/search/{n:05d}.npz" for n in range(40))):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


@pytest.mark.parametrize("schedule", ["joint", "paper"])
def test_typical_acceptance_from_search_to_bank(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path, schedule: str
) -> None:
    words = ("run", "--out", tmp_path / "r", "--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file,
             "--acceptance", "typical", "--temperature", 1.0, "--epsilon", 0.001, "--schedule", schedule, *SMALL)  # fmt: skip
    result = cli(*words)
    assert result.exit_code == 0, result.output
    assert "not lossless" in result.stdout
    assert "log probability" in result.stdout
    document = json.loads((tmp_path / "r" / "bank.json").read_text())
    assert document["acceptance"] == {"rule": "typical", "temperature": 1.0, "epsilon": 0.001, "alpha": 0.3}
    assert set(document["policies"]) == {"static", "ladder", "hysteresis"}
    assert "not lossless" in document["evaluation"]["method"]
    frontier = json.loads((tmp_path / "r" / "frontier.json").read_text())
    assert all(growth["forwards"] > 0 for growth in frontier["growths"])
    before = (tmp_path / "r" / "frontier.json").read_bytes()
    (tmp_path / "r" / "frontier.json").unlink()
    assert cli("search", *words[1:17], *SMALL[:10], "--dtype", "float32").exit_code == 0
    assert (tmp_path / "r" / "frontier.json").read_bytes() == before
    verified = cli("verify", tmp_path / "r" / "bank.json", "--dtype", "float32")
    assert verified.exit_code == 0, verified.output
    assert "not lossless" in verified.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--acceptance", "typical", "--temperature", 1), "a trace tells nothing"),
        (("--acceptance", "typical", "--schedule", "joint"), "temperature"),
        (("--acceptance", "lenient"), "unknown --acceptance"),
        (("--preset", "paper", "--max-nodes", 5), "--max-nodes is set by --preset paper"),
        (("--preset", "thesis"), "unknown preset"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, prompt_file: Path, words: tuple[object, ...], message: str
) -> None:
    result = cli("search", "--out", tmp_path / "r", "--model", "nowhere", "--heads", "nothing", "--task", prompt_file, *words)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "stop"),
    [
        (("--prompt-style", "raw"), ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]),
        (("--prompt-style", "raw", "--stop", "none"), []),
        (("--prompt-style", "raw", "--stop", "END"), ["END"]),
        ((), []),
    ],
)
def test_plain_text_of_humaneval_ends_where_a_function_does(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, words: tuple[object, ...], stop: list[str]
) -> None:
    result = cli("search", "--out", tmp_path / "r", "--model", tiny_folder, "--heads", tiny_heads, "--task", "humaneval",
                 "--quiet", *SMALL[:8], "--dtype", "float32", *words)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "r" / "run.json").read_text())["config"]["stop"] == stop
