"""What makes two prompts the same, near enough: shared runs of words, or mostly the same content words.

Text is compared as lower-case words. Three rules, each enough: a shared run of eight words; a text that contains a whole short
one (under eight words); half of all content words in common. No word and no instruction is exempt from the run of eight.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

RUN = 8
_NEAR = 0.5  # intersection over union of content words
_WORD = re.compile(r"\w+")
# Words of instructions and of grammar say nothing about what is asked. Names and numbers do, and stay.
_EMPTY_TEXT = """
a about after all also an and answer any are as at be been before by can code complete could describe do does each end
every explain find following for from function give had has have he her him his how i if in into is it its json last
less line list make many me more most much my new no not number of on one or other our out over please python return she
short should show so some solve step story tell than that the their them then there they this to two up use was we were
what when where which who why will with without words would write you your
"""
_EMPTY = frozenset(_WORD.findall(_EMPTY_TEXT))


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def runs(text: str, length: int = RUN) -> set[tuple[str, ...]]:
    """Every run of `length` words; a shorter text is one run, all of it."""
    found = words(text)
    return {tuple(found[i : i + length]) for i in range(max(1, len(found) - length + 1))} if found else set()


def content(text: str) -> frozenset[str]:
    return frozenset(words(text)) - _EMPTY


class Index:
    """Texts that others must not resemble."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs: defaultdict[int, set[tuple[str, ...]]] = defaultdict(set)
        self._contents: list[frozenset[str]] = []
        self._having: defaultdict[str, list[int]] = defaultdict(list)
        for text in texts:
            self._add(text)

    def _add(self, text: str) -> None:
        for run in runs(text):
            self._runs[len(run)].add(run)
        for word in content(text):
            self._having[word].append(len(self._contents))
        self._contents.append(content(text))

    def clash(self, text: str) -> str | None:
        """What `text` shares with an indexed one, in words for an error message, or null."""
        for length, known in self._runs.items():
            if shared := runs(text, length) & known:
                return f"shares the words '{' '.join(min(shared))}'"
        mine = content(text)
        common = Counter(i for word in mine for i in self._having.get(word, ()))
        for i, count in common.items():
            if count >= _NEAR * (len(mine) + len(self._contents[i]) - count):
                return f"has the content of '{' '.join(sorted(self._contents[i]))}'"
        return None


def workload_texts(folder: Path) -> Iterator[str]:
    """Every text of the shipped workloads: prompts, all turns of conversations, and the novels that long prompts quote."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f"{folder}: no .jsonl prompt set; run from a checkout that has workloads/")
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield from [row["prompt"]] if "prompt" in row else [message["content"] for message in row["messages"]]
    for file in sorted(folder.glob("*_source.txt")):
        yield file.read_text(encoding="utf-8")
