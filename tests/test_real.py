"""The embedded model with the shipped heads on two real prompts, end to end."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest
import torch
from conftest import cli, plain

from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import load_pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.policy import Static
from entmtp_calib.template import encode
from entmtp_calib.topology import published_default

pytestmark = pytest.mark.real


def test_two_humaneval_prompts_decode_exactly_and_in_fewer_steps_in_float32() -> None:
    torch.set_num_threads(2)
    pair = load_pair("smollm2", "smollm2-hydra", choose_placement("cpu", "float32"))
    assert pair.sanity is not None
    assert min(pair.sanity.top10) > 0.2
    stop = StopRule(pair.target.end_ids, 32)
    decoder = Decoder(pair.target, pair.heads, [published_default()], Static(0))
    for prompt in load_prompts("humaneval", count=2, seed=3).prompts:
        ids = encode(prompt.messages, pair.tokenizer)
        steps = list(decoder.steps(ids, stop))
        tokens = [token for step in steps for token in step.tokens]
        assert tokens == plain(pair.target, ids, stop)
        assert len(steps) < 0.8 * len(tokens)


def test_the_whole_path_from_prompts_to_a_bank_that_decodes(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    out = tmp_path / "run"
    result = cli("run", "--out", out, "--search-prompts", 4, "--fit-prompts", 2, "--test-prompts", 2, "--max-new-tokens", 24,
                 "--max-nodes", 8, "--trees", 2, "--recalibrate-prompts", 1, "--time-prompts", 1, "--rounds", 1,
                 "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {row["arm"] for row in document["timings"]} >= {"ar", "default-63"}
    assert document["side_by_side"]["tokens_per_step"] >= 1
    decoded = cli("decode", "--bank", out / "bank.json", "--max-new-tokens", 16, "--json", "Name three colours.")
    assert decoded.exit_code == 0, decoded.output
    assert json.loads(decoded.stdout)["text"].strip()


def test_the_five_lines_of_the_readme_write_the_answer_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python block of the README, on a bank of the results."""
    root = Path(__file__).resolve().parent.parent
    readme = (root / "README.md").read_text("utf-8")
    block = readme.split("\n```python\n")[1].split("```")[0]
    answer = re.findall(r"(?:^(?:    .*)?\n)+", readme[readme.index("    Here's a Python function") :], re.MULTILINE)[0]
    bank = tmp_path / "outputs" / "demo" / "bank.json"
    bank.parent.mkdir(parents=True)
    shutil.copy(root / "docs" / "results" / "humaneval-bank.json", bank)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith(textwrap.dedent(answer).strip())
