"""The training prompts: built once by code, committed as `data/prompts.parquet`, disjoint from every workload.

python -m drafters.train.prompts            build the file again (code prompts depend on the interpreter's library)
python -m drafters.train.prompts --check    compare the committed file with the workloads and count it

Prompts come in groups: all that one template, topic or library module gave. The held-out split takes whole groups, so a drafter
is never evaluated on a prompt whose twin with other numbers it was trained on. The order is shuffled over the classes: any
beginning of the file is a balanced sample.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from drafters.train import code, stdlib
from drafters.train.disjoint import Index, workload_texts
from drafters.train.grammar import Lists, fill, read_source

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "data" / "prompts.parquet"
SOURCES = ROOT / "data" / "sources"
WORKLOADS = ROOT / "workloads"

COUNTS = {"code": 2400, "math": 2200, "chat": 1900, "prose": 1300, "structured": 1200, "repetition": 1200}
HELD_OUT = 16  # prompts per class
_MOST_CHARACTERS = 700
_SEED = 20
Candidate = tuple[str, str]  # text, group


@dataclass(frozen=True, slots=True)
class Prompt:
    """`prompt_id` is `<class>/<n>`; `split` is `train` or `held_out`; `group` names what prompts of a kind have in common."""

    prompt_id: str
    content_class: str
    split: str
    group: str
    text: str


def build(workloads: Path = WORKLOADS, counts: dict[str, int] = COUNTS, held_out: int = HELD_OUT) -> list[Prompt]:
    """All prompts in their final order. Raises ValueError when a class has too few candidates."""
    index = Index(workload_texts(workloads))
    found = {
        name: list(itertools.islice(_usable(candidates, index), counts[name])) for name, candidates in _candidates().items()
    }
    for name, candidates in found.items():
        if len(candidates) < counts[name]:
            raise ValueError(f"class {name}: {len(candidates)} usable prompts of {counts[name]}; add templates or lower COUNTS")
    apart = {name: _apart(candidates, held_out) for name, candidates in found.items()}
    everywhere = set().union(*apart.values())
    prompts = [
        prompt for name, candidates in found.items() for prompt in _split(name, candidates, apart[name], everywhere, held_out)
    ]
    return sorted(prompts, key=lambda prompt: _hash(prompt.text))


def _candidates() -> dict[str, Iterator[Candidate]]:
    """An endless or long stream of candidates per class, each from its own seed."""
    words: Lists = read_source(SOURCES / "words.yaml")
    return {
        "code": _alternate(
            [_library("code", stdlib.complete, stdlib.explain), _exercises(), _templated("code", words, "task")]
        ),
        "math": _templated("math", words, None),
        "chat": _templated("chat", words, "topic"),
        "prose": _templated("prose", words, "event"),
        "structured": _templated("structured", words, None),
        "repetition": _library("repetition", stdlib.edit, stdlib.copy),
    }


def _templated(name: str, words: Lists, key: str | None) -> Iterator[Candidate]:
    """Templates of a source file with the whole product of lists behind them; the group is the key's value or the template."""
    source = read_source(SOURCES / f"{name}.yaml")
    draw = random.Random(f"{_SEED} {name}")
    lists = {**words, **source}
    for number in itertools.cycle(range(len(source["templates"]))):
        text, values = fill(source["templates"][number], lists, draw)
        text += draw.choice(source.get("suffix", [""]))
        yield _sentence(text), values.get(key or "", f"{name} template {number}")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _exercises() -> Iterator[Candidate]:
    draw = random.Random(f"{_SEED} exercises")
    while True:
        yield code.exercise(draw)


def _library(name: str, *makers: Callable[[stdlib.Function, random.Random], str | None]) -> Iterator[Candidate]:
    """Every maker over every function of the library, shuffled; the group is the module, for code and editing alike."""
    draw = random.Random(f"{_SEED} {name}")
    pairs = list(itertools.product(stdlib.functions(), makers))
    draw.shuffle(pairs)
    for function, make in pairs:
        if text := make(function, draw):
            yield text, function.module


def _alternate(streams: Sequence[Iterator[Candidate]]) -> Iterator[Candidate]:
    """One of each in turn, until each has ended."""
    for row in itertools.zip_longest(*streams):
        yield from (candidate for candidate in row if candidate)


def _usable(candidates: Iterator[Candidate], index: Index) -> Iterator[Candidate]:
    """Not too long, not twice, not like a workload. Endless streams end when they find nothing new."""
    seen: set[str] = set()
    stale = 0
    for text, group in candidates:
        stale += 1
        if stale > 5000:
            return
        if text not in seen and len(text) <= _MOST_CHARACTERS and index.clash(text) is None:
            seen.add(text)
            stale = 0
            yield text, group


def _apart(found: Sequence[Candidate], held_out: int) -> list[str]:
    """The groups of a class that are held out: the first in the order of their hash, at most an eighth of them."""
    order = sorted({group for _, group in found}, key=_hash)
    return order[: min(held_out, max(1, len(order) // 8))]


def _split(name: str, found: list[Candidate], apart: list[str], everywhere: set[str], held_out: int) -> list[Prompt]:
    """`held_out` prompts out of the groups apart, one of each in turn; for training those of groups that no class holds out."""
    by_group: defaultdict[str, list[str]] = defaultdict(list)
    for text, group in found:
        by_group[group].append(text)
    rounds = itertools.zip_longest(*(by_group[group] for group in apart))
    taken = [(text, group) for texts in rounds for text, group in zip(texts, apart, strict=True) if text][:held_out]
    kept = [(text, group) for text, group in found if group not in everywhere]
    rows = [("train", *row) for row in kept] + [("held_out", *row) for row in taken]
    return [Prompt(f"{name}/{n}", name, split, group, text) for n, (split, text, group) in enumerate(rows)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_prompts(prompts: Iterable[Prompt], path: Path = FILE) -> None:
    columns = {name: [getattr(prompt, name) for prompt in prompts] for name in Prompt.__slots__} if prompts else {}
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


def read_prompts(path: Path = FILE) -> list[Prompt]:
    """The committed prompts, in order."""
    return [Prompt(**row) for row in pq.read_table(path).to_pylist()]


def problems(prompts: Sequence[Prompt], workloads: Path = WORKLOADS) -> list[str]:
    """What is wrong with a set, a line each: near a workload, twice, a group on both sides, too few held out."""
    index = Index(workload_texts(workloads))
    found = [f"{p.prompt_id} {clash} with a workload" for p in prompts if (clash := index.clash(p.text))]
    found += [f"'{text[:50]}' occurs {n} times" for text, n in Counter(p.text for p in prompts).items() if n > 1]
    trained = {p.group for p in prompts if p.split == "train"}
    found += [
        f"{p.prompt_id}: held out, but group '{p.group}' is trained on"
        for p in prompts
        if p.split != "train" and p.group in trained
    ]
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check the committed file, write nothing")
    if not parser.parse_args(arguments).check:
        write_prompts(build())
    prompts = read_prompts()
    wrong = problems(prompts)
    for (name, split), n in sorted(Counter((p.content_class, p.split) for p in prompts).items()):
        print(f"{name:11} {split:9} {n}")
    print("\n".join(wrong) or f"{len(prompts)} prompts, disjoint from every workload")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
