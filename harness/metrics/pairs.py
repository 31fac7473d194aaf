"""Two arms side by side: the same prompts, in the same block, as log ratios arm over plain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.metrics.load import Throughput, output_tps
from harness.metrics.rows import Row, Rows, prompt_key, succeeded
from harness.metrics.value import Maybe, Missing

Prompt = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pairs:
    """`log_ratio_BP`: blocks x prompts, log(arm / plain). `strata` names the content class of every prompt."""

    log_ratio_BP: NDArray[np.float64]
    blocks: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    strata: tuple[str, ...]


def shared_blocks(arms: Mapping[str, Rows]) -> tuple[int, ...]:
    """Blocks in which every arm measured every prompt set that any of them measured: a block cut short is no pair."""
    sets = {row["prompt_set"] for rows in arms.values() for row in rows}
    seen = {(name, int(row["block"]), row["prompt_set"]) for name, rows in arms.items() for row in rows}
    blocks = sorted({block for _, block, _ in seen})
    return tuple(b for b in blocks if all((name, b, s) in seen for name in arms for s in sets))


def paired_log_ratios(arms: Mapping[str, Rows], arm: str, plain: str, value: Callable[[Row], Maybe]) -> Pairs:
    """Log ratios of a per-request value, over the prompts that have one in every arm and block.

    `arms` maps arm to its measured rows at one concurrency; all must have succeeded on a prompt for it to count, so that
    every arm is judged on the same prompts. `value` must be positive.
    """
    blocks = shared_blocks(arms)
    values: dict[tuple[str, int, Prompt], float] = {}
    strata: dict[Prompt, str] = {}
    for name, rows in arms.items():
        for row in succeeded(rows):
            number = value(row)
            if not isinstance(number, Missing):
                values[name, int(row["block"]), prompt_key(row)] = number
                strata[prompt_key(row)] = str(row["content_class"])
    prompts = tuple(p for p in sorted(strata) if all((name, b, p) in values for name in arms for b in blocks))
    table = [[math.log(values[arm, b, p] / values[plain, b, p]) for p in prompts] for b in blocks]
    ratios = np.array(table, dtype=np.float64).reshape(len(blocks), len(prompts))
    return Pairs(ratios, blocks, prompts, tuple(strata[p] for p in prompts))


def block_log_ratios(arm: Rows, plain: Rows, concurrency: int) -> NDArray[np.float64] | Missing:
    """Log ratio of steady-window output rates per block: mean over content classes of the mean over their prompt sets.

    The batch is the unit: rows are one cell per (block, prompt set). Refused with the reason of a cell without a rate.
    """
    ratios = []
    for block in shared_blocks({"arm": arm, "plain": plain}):
        by_class: dict[str, list[float]] = {}
        for name, content in sorted({(str(r["prompt_set"]), str(r["content_class"])) for r in plain}):
            rates = [output_tps(_cell(rows, block, name), concurrency) for rows in (arm, plain)]
            if missing := next((r for r in rates if isinstance(r, Missing)), None):
                return missing
            ours, theirs = (r.tps for r in rates if isinstance(r, Throughput))
            if not ours or not theirs:
                return Missing("no_tokens")
            by_class.setdefault(content, []).append(math.log(ours / theirs))
        ratios.append(float(np.mean([np.mean(logs) for logs in by_class.values()])))
    return np.array(ratios, dtype=np.float64)


def _cell(rows: Rows, block: int, prompt_set: str) -> list[Row]:
    return [row for row in rows if int(row["block"]) == block and row["prompt_set"] == prompt_set]
