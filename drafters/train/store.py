"""Where generated sequences lie: Parquet shards written in one step, and a journal of what is not in a shard yet.

A folder belongs to one identity (target, prompts, limits), stored in every file; another one is refused, never mixed in. A
finished sequence goes to the journal at once, a finished shard replaces its journal lines. So a process may be killed at any
moment, and only the sequences that were still being decoded are lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Key = tuple[str, float, int]
SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), metadata={"meaning": "id in prompts.parquet"}),
        pa.field("content_class", pa.string(), metadata={"meaning": "class of the prompt"}),
        pa.field("split", pa.string(), metadata={"meaning": "train or held_out"}),
        pa.field("temperature", pa.float32(), metadata={"meaning": "0 is greedy"}),
        pa.field("seed", pa.int32(), metadata={"meaning": "pass over the prompts; with prompt_id it seeds the sampling"}),
        pa.field(
            "prompt_ids", pa.list_(pa.int32()), metadata={"meaning": "the rendered prompt, up to where the answer begins"}
        ),
        pa.field("output_ids", pa.list_(pa.int32()), metadata={"meaning": "the answer, its stop token included if it has one"}),
    ]
)
_IDENTITY = b"samerig.identity"


@dataclass(frozen=True, slots=True)
class Asked:
    """One sequence to generate."""

    prompt_id: str
    content_class: str
    split: str
    temperature: float
    seed: int

    @property
    def key(self) -> Key:
        return self.prompt_id, self.temperature, self.seed


@dataclass(frozen=True, slots=True)
class Answer:
    """One generated sequence: what was asked, the rendered prompt, the answer."""

    asked: Asked
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


class Store:
    """The folder of one data set. `worker` names the journal of this process; those of others are read, never written."""

    def __init__(self, folder: Path, identity: Mapping[str, str | int], worker: str = "0of1") -> None:
        self.folder, self._identity = folder, json.dumps(dict(identity), sort_keys=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = folder / f"pending-{worker}.jsonl"
        for path in sorted(folder.glob("part-*.parquet")):
            self._check((pq.read_schema(path).metadata or {}).get(_IDENTITY, b"").decode(), path)
        self._mend()
        self.pending = {a.asked.key: a for path in sorted(folder.glob("pending-*.jsonl")) for a in self._read_journal(path)}
        self._own = {a.asked.key for a in self._read_journal(self._journal)}

    def path(self, shard: int) -> Path:
        return self.folder / f"part-{shard:04d}.parquet"

    def add(self, answer: Answer) -> None:
        """Keep a finished answer in the journal."""
        new = not self._journal.exists()
        with self._journal.open("a", encoding="utf-8") as stream:
            stream.write((self._identity + "\n" if new else "") + _line(answer))
        self.pending[answer.asked.key] = answer
        self._own.add(answer.asked.key)

    def finish(self, shard: int, asked: Sequence[Asked]) -> bool:
        """Write the shard if all its sequences are there, in their order, and take them out of the journal."""
        if not all(a.key in self.pending for a in asked):
            return False
        answers = [self.pending[a.key] for a in asked]
        rows = [{**asdict(a.asked), "prompt_ids": a.prompt_ids, "output_ids": a.output_ids} for a in answers]
        table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({_IDENTITY: self._identity.encode()}))
        scratch = self.path(shard).with_suffix(f".{os.getpid()}.tmp")
        pq.write_table(table, scratch, compression="zstd", compression_level=19)
        scratch.replace(self.path(shard))
        for a in asked:
            del self.pending[a.key]
        self._rewrite_journal()
        return True

    def _rewrite_journal(self) -> None:
        self._own &= self.pending.keys()
        self._replace_journal([self._identity + "\n", *(_line(self.pending[key]) for key in sorted(self._own))])

    def _mend(self) -> None:
        """Drop the last line of the own journal if a process was killed while it wrote it."""
        if self._journal.exists():
            lines = self._journal.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            self._replace_journal(whole or [self._identity + "\n"])

    def _replace_journal(self, lines: Iterable[str]) -> None:
        scratch = self._journal.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text("".join(lines), encoding="utf-8")
        scratch.replace(self._journal)

    def _read_journal(self, path: Path) -> Iterable[Answer]:
        """What a journal holds; a last line without its end is being written, or never will be, and is passed over."""
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        for number, line in enumerate(whole):
            if number == 0:
                self._check(line.strip(), path)
            else:
                asked, prompt_ids, output_ids = json.loads(line)
                yield Answer(Asked(**asked), tuple(prompt_ids), tuple(output_ids))

    def _check(self, found: str, path: Path) -> None:
        if found != self._identity:
            raise ValueError(f"{path}: generated as {found or 'unknown'}, asked for {self._identity}; use another `out` folder")


def _line(answer: Answer) -> str:
    return json.dumps([asdict(answer.asked), answer.prompt_ids, answer.output_ids]) + "\n"


def read_answers(folder: Path, split: str | None = None) -> list[Answer]:
    """All sequences of the shards in `folder`, in order; of one split when it is named. Raises FileNotFoundError if empty."""
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no part-*.parquet; generate with python -m drafters.train.data RECIPE")
    rows = [row for path in paths for row in pq.read_table(path, schema=SCHEMA).to_pylist()]
    return [
        Answer(
            Asked(r["prompt_id"], r["content_class"], r["split"], round(r["temperature"], 6), r["seed"]),
            tuple(r["prompt_ids"]),
            tuple(r["output_ids"]),
        )
        for r in rows
        if split in (None, r["split"])
    ]
