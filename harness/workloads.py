"""Pinned prompt sets: what is loaded, in which order it is asked, and what is wrong with a workload before it runs.

A set is a JSONL file named, hashed and described in `workloads/manifest.json` (or, for sets built from a hub on this machine,
`workloads/hub/manifest.json`). Nothing here fetches anything. How a prompt becomes token ids is `harness.rendering`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from harness.config import Model, PromptSet, Protocol, Run

FOLDER = Path(__file__).resolve().parents[1] / "workloads"
MANIFESTS = ("manifest.json", "hub/manifest.json")

ContentClass = Literal["code", "math", "chat", "prose", "structured", "repetition", "long", "mixed"]


class Entry(Model):
    """One set of a manifest. Paths are relative to that manifest.

    `public_benchmark`: drafters may have been trained or tuned on it, so read it beside a set that is not. `context` describes
    how long prompts are composed; `context_file` holds the text they are cut from. `mixed` is for warm-up sets only.
    """

    file: str
    sha256: str
    n: int
    content_class: ContentClass
    source: str
    licence: str
    language: str
    public_benchmark: bool
    context: str | None = None
    context_file: str | None = None
    context_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `messages` are (role, content) and end with the user; earlier turns are frozen, never the arm's own.

    `passages` are the paragraphs that a long prompt's context is cut from, in reading order from its own first one; then the
    last message holds only the question. `answer` is what an accuracy gate compares with, where there is one.
    """

    id: str
    content_class: str
    messages: tuple[tuple[str, str], ...]
    answer: Any = field(default=None, compare=False)
    passages: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class PromptSetData:
    """A loaded set, in file order."""

    name: str
    entry: Entry
    prompts: tuple[Prompt, ...]


def manifest(folder: Path = FOLDER) -> dict[str, tuple[Path, Entry]]:
    """Every known set: the folder its paths are relative to, and its entry."""
    found: dict[str, tuple[Path, Entry]] = {}
    for path in (folder / name for name in MANIFESTS):
        if path.is_file():
            sets = json.loads(path.read_text(encoding="utf-8"))["sets"]
            found.update({name: (path.parent, Entry(**entry)) for name, entry in sets.items()})
    return found


def load_set(name: str, folder: Path = FOLDER) -> PromptSetData:
    """The set, its bytes checked. Raises ValueError: unknown set, changed file, or a count other than the manifest's."""
    known = manifest(folder)
    if name not in known:
        raise ValueError(_unknown(name, known))
    base, entry = known[name]
    lines = _checked(base / entry.file, entry.sha256).splitlines()  # bytes: a str would also split at U+2028 inside a prompt
    passages: tuple[str, ...] = ()
    if entry.context_file is not None:
        text = _checked(base / entry.context_file, entry.context_sha256).decode("utf-8")
        passages = tuple(text.strip().split("\n\n"))
    prompts = tuple(_prompt(json.loads(line), entry, passages) for line in lines)
    if len(prompts) != entry.n:
        raise ValueError(f"{base / entry.file}: {len(prompts)} prompts, the manifest says {entry.n}; {_FIX}")
    return PromptSetData(name, entry, prompts)


def seeded(prompts: Iterable[Prompt], seed: int) -> list[Prompt]:
    """A fixed pseudo-random order that depends on seed and ids only, not on the file's order or a generator's version."""
    return sorted(prompts, key=lambda prompt: hashlib.sha256(f"{seed}:{prompt.id}".encode()).digest())


def select(data: PromptSetData, n: int, seed: int) -> tuple[Prompt, ...]:
    """The first `n` of the seeded order: distinct, and a larger `n` holds every smaller one. Raises ValueError past the end."""
    if n > len(data.prompts):
        raise ValueError(_too_few(data.name, n, len(data.prompts)))
    return tuple(seeded(data.prompts, seed)[:n])


def warmup_prompts(n: int, seed: int, depth: int | None = None) -> tuple[Prompt, ...]:
    """`n` prompts disjoint from every measured one, content classes in turn. With `depth`, long ones to compose to it."""
    if depth is not None:
        return select(load_set("warmup_long"), n, seed)
    data = load_set("warmup")
    if n > len(data.prompts):
        raise ValueError(_too_few("warmup", n, len(data.prompts)))
    by_class: defaultdict[str, list[Prompt]] = defaultdict(list)
    for prompt in seeded(data.prompts, seed):
        by_class[prompt.content_class].append(prompt)
    rounds = zip_longest(*(by_class[name] for name in sorted(by_class)))
    return tuple(prompt for one_of_each in rounds for prompt in one_of_each if prompt is not None)[:n]


def prompt_count(protocol: Protocol, concurrency: int) -> int:
    """Distinct prompts that a cell asks: at least `waves` full batches, and never fewer than `prompts_per_set`."""
    return max(protocol.prompts_per_set, protocol.waves * concurrency)


def set_label(prompt_set: PromptSet) -> str:
    """How rows and tables name a set: `long@1500` where depth tells two uses of one set apart, else its name.

    With a warm prefix cache the tokens in it follow: `long@1500+1400`.
    """
    name = prompt_set.set if prompt_set.depth is None else f"{prompt_set.set}@{prompt_set.depth}"
    return name if prompt_set.cached is None else f"{name}+{prompt_set.cached}"


def check_workload(run: Run) -> list[str]:
    """What would go wrong with this run's prompts, one line each, before anything is launched."""
    target, protocol = run.target, run.protocol
    problems = []
    if target.source == "hub" and not re.fullmatch(r"[0-9a-f]{40}", target.revision or ""):
        problems.append(f"target.revision: '{target.revision}' is not a commit hash and can move; pin the full 40 digits")
    for i, prompt_set in enumerate(run.workload.sets):
        problems += _set_problems(run, f"workload.sets[{i}]", prompt_set)
    if (have := _available("warmup")) < protocol.warmup_prompts:
        problems.append(f"protocol.warmup_prompts: {protocol.warmup_prompts} asked, the warm-up set has {have}; lower it")
    return problems


def _set_problems(run: Run, key: str, prompt_set: PromptSet) -> list[str]:
    try:
        data = load_set(prompt_set.set)
    except ValueError as problem:
        return [f"{key}.set: {problem}"]
    problems = []
    needed = run.workload.skip_prompts + prompt_count(run.protocol, max(run.concurrency))
    if needed > len(data.prompts):
        problems.append(f"{key}.set: {_too_few(data.name, needed, len(data.prompts))}")
    if prompt_set.cached is not None and not run.engine.prefix_cache:
        problems.append(f"{key}.cached: needs engine.prefix_cache=true")
    if prompt_set.cached is not None and prompt_set.cached >= (prompt_set.depth or math.inf):
        problems.append(f"{key}.cached: {prompt_set.cached} is not below the depth {prompt_set.depth}; lower it")
    composed = data.entry.context_file is not None
    if composed and prompt_set.depth is None:
        problems.append(f"{key}.depth: set '{data.name}' is composed to a depth; set depth (tokens)")
    if not composed and prompt_set.depth is not None:
        problems.append(f"{key}.depth: set '{data.name}' has no context to cut; remove depth")
    room = run.target.context - run.max_tokens(prompt_set)
    if room <= 0:
        problems.append(f"target.context: {run.target.context} has no room for a prompt and {key}.max_tokens; raise it")
    if prompt_set.depth is not None and prompt_set.depth > room:
        problems.append(
            f"{key}.depth: {prompt_set.depth} exceeds target.context - max_tokens = {room}; lower it or raise context"
        )
    return problems


_FIX = (
    "restore it from version control, rebuild it with: python -m workloads.build, or accept an edit of your own set with --pin"
)


def _checked(path: Path, sha256: str | None) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: listed in the manifest but absent; {_FIX}")
    content = path.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ValueError(f"{path}: sha256 is {found}, the manifest pins {sha256}; {_FIX}")
    return content


def _prompt(line: dict[str, Any], entry: Entry, passages: tuple[str, ...]) -> Prompt:
    turns = line["messages"] if "messages" in line else [{"role": "user", "content": line["prompt"]}]
    messages = tuple((turn["role"], turn["content"]) for turn in turns)
    first = line.get("first_passage", 0)
    in_order = passages[first:] + passages[:first]
    return Prompt(line["id"], line.get("content_class", entry.content_class), messages, line.get("answer"), in_order)


def _available(name: str) -> int:
    known = manifest()
    return known[name][1].n if name in known else 0


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    guess = f"did you mean '{near[0]}'?" if near else f"known sets: {', '.join(names)}"
    return f"unknown prompt set '{name}'; {guess}"


def _too_few(name: str, asked: int, have: int) -> str:
    return f"{asked} distinct prompts needed, '{name}' has {have}: none repeats; lower concurrency, waves or prompts_per_set"
