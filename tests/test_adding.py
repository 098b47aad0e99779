"""The pages that say how to add something, followed: their changes are made to a copy of the package, their promises run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from entmtp_calib.engine.head_export import check_format
from entmtp_calib.errors import UsageError

ROOT = Path(__file__).parent.parent
POLICY_IS_FITTED = """
import random
from types import SimpleNamespace
from entmtp_calib.calibrate.fitting import kinds_of_policy
from entmtp_calib.calibrate.thresholds import Costs
from entmtp_calib.commands._tables import describe
from entmtp_calib.replay import Replayer
from entmtp_calib.topology import Topology, chain
from handmade import random_trace

trees, rng = [Topology(), chain(1), chain(3)], random.Random(3)
texts = Replayer(trees, [random_trace(rng, 60, 3, str(text)) for text in range(8)], "path_value_2")
costs = Costs((0.01, 0.012, 0.02), (0.0, 0.001, 0.002), (0.0, 0.001, 0.003))
fit, _gain = kinds_of_policy("path_value_2", costs, texts, 0)["cautious"]
found = fit(texts, costs)
assert found.policy.kind == "cautious"
assert found.tokens_per_s >= kinds_of_policy("path_value_2", costs, texts, 0)["static"][0](texts, costs).tokens_per_s
bank = SimpleNamespace(choices=lambda policy: [("ar", ()), ("one", ()), ("three", ())], policies={})
assert describe(policy, bank) == "ar below 0.5, else three"
"""


def fenced(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def changes(page: str) -> Iterator[tuple[str, str, str]]:
    """File, old text and new text of every change on a page."""
    for block in fenced(page, "diff"):
        for part in re.split(r"^--- ", block, flags=re.MULTILINE)[1:]:
            name, _, hunks = part.partition("\n")
            for hunk in hunks.split("@@\n"):
                lines = hunk.rstrip("\n").split("\n")
                old, new = ("\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
                yield name, old, new


def followed(page: str, folder: Path) -> dict[str, str]:
    """A copy of the package and of the tests with a page's changes, and the environment in which it is imported."""
    forget = shutil.ignore_patterns("__pycache__", "*.safetensors")
    shutil.copytree(ROOT / "entmtp_calib", folder / "entmtp_calib", ignore=forget)
    for part in ("commands", "data"):
        shutil.copytree(ROOT / part, folder / "entmtp_calib" / part, ignore=forget)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=forget)
    for name, old, new in changes(page):
        path = folder / (f"entmtp_calib/{name}" if name.startswith("commands/") else name)
        text = path.read_text("utf-8")
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new), "utf-8")
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(folder / "tests"))), "PYTHONDONTWRITEBYTECODE": "1"}


def run(*words: object, folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, *map(str, words)], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("page", "more"), [("adding-signals.md", ""), ("adding-policies.md", POLICY_IS_FITTED), ("adding-data-sets.md", "")]
)
def test_what_a_page_changes_does_what_it_promises(page: str, more: str, tmp_path: Path) -> None:
    env = followed(page, tmp_path)
    assert fenced(page, "python")
    here = f"import entmtp_calib\nassert entmtp_calib.__file__.startswith({str(tmp_path)!r})\n"
    run("-c", "\n".join((here, *fenced(page, "python"), more)), folder=tmp_path, env=env)


def test_heads_of_the_page_keep_the_laws_and_can_be_trained(tmp_path: Path, tiny_folder: Path, prompt_file: Path) -> None:
    env = followed("adding-heads.md", tmp_path)
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_decoder.py", "-k", "last", folder=tmp_path, env=env)
    run("-m", "entmtp_calib", "train-heads", "--architecture", "last", "--out", "my-heads", "--base", tiny_folder, "--prompts",
        prompt_file, "--heads", 2, "--layers", 1, "--max-new-tokens", 8, "--steps", 2, "--batch", 256, "--dtype", "float32",
        folder=tmp_path, env=env)  # fmt: skip
    assert "last heads for" in (tmp_path / "my-heads" / "README.md").read_text("utf-8")
    with pytest.raises(UsageError, match="last heads cannot be written"):
        check_format("hydra", "last")
