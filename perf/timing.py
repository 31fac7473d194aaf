"""What the benchmarks share: prompts of equal length, interleaved rounds, medians with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compose import compose_run
from harness.engines.reference import ReferenceEngine
from harness.rendering import load_tokenizer, render
from harness.workloads import load_set, select


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest of n rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:8.2f}  [{self.low:.2f} .. {self.high:.2f}]"


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Spread]:
    """Every contender once per round, the order turned by one each round, so that a drift of the machine hits all alike."""
    names = list(contenders)
    seen: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            seen[name].append(contenders[name]())
    return {name: Spread.of(values) for name, values in seen.items()}


def embedded_folder() -> Path:
    """The embedded target's folder, unpacked if need be."""
    return ReferenceEngine.tokenizer_folder(compose_run("cpu_smollm2").run)


def prompts(folder: Path, count: int, length: int) -> list[tuple[int, ...]]:
    """Rendered prompts of real sets, the last `length` tokens of each, so that batches need no padding in any engine."""
    tokenizer = load_tokenizer(folder)
    rendered = [render(p, tokenizer).prompt_ids for p in select(load_set("humaneval"), 4 * count, seed=0)]
    long_enough = [ids[-length:] for ids in rendered if len(ids) >= length]
    if len(long_enough) < count:
        raise ValueError(f"only {len(long_enough)} prompts have {length} tokens; ask for shorter ones")
    return long_enough[:count]
