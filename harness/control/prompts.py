"""Findings from what was asked and what came back: the same prompts, rendered the same, answered at the same length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

from harness.control.factors import remedy
from harness.control.findings import Finding, Side, values_of
from harness.metrics import LENGTH_LIMIT, Row, integer, prompt_key, succeeded

LENGTH_CONFIDENCE = 0.99
FEWEST_PROMPTS = 3


def prompts(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """The same prompts in each block, rendered the same, under the same limits."""
    sides = [side.measured(concurrency) for side in (plain, arm)]
    asked = [{(int(r["block"]), *prompt_key(r)) for r in rows} for rows in sides]
    blocks = {key[0] for key in asked[0]} & {key[0] for key in asked[1]}
    if not blocks or any(key[0] in blocks for key in asked[0] ^ asked[1]):
        counts = f"{len(asked[0])} asked", f"{len(asked[1])} asked"
        yield Finding("prompts", "confounder", *counts, remedy("prompts"))
    for column in ("prompt_hash", "max_tokens", "ignore_eos"):
        a, b = ({prompt_key(r): str(r[column]) for r in rows} for rows in sides)
        if differ := sorted(k for k in a.keys() & b.keys() if a[k] != b[k]):
            shown = a[differ[0]][:12], b[differ[0]][:12]
            yield Finding(f"{column} of {len(differ)} prompts", "confounder", *shown, remedy(column))


def lengths(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """Whether one arm says less: the mean log ratio of output lengths over prompts, with its 99 % t interval.

    Outputs that differ without a direction (sampling, ties in the last digits) are no finding; forced lengths are equal.
    """
    a, b = (_length_by_prompt(side.measured(concurrency)) for side in (plain, arm))
    logs = np.array([np.log(b[key] / a[key]) for key in sorted(a.keys() & b.keys())])
    if not len(logs) or abs(np.expm1(logs.mean())) <= LENGTH_LIMIT:
        return
    means = [float(np.mean([side[key] for key in a.keys() & b.keys()])) for side in (a, b)]
    shown = f"{means[0]:.1f} tokens", f"{means[1]:.1f} tokens"
    if len(logs) < FEWEST_PROMPTS:
        yield Finding("output_length", "unknown", *shown, f"{len(logs)} prompts cannot tell a direction; ask more")
        return
    half = float(stats.t.ppf((1 + LENGTH_CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    if abs(logs.mean()) > half:
        yield Finding("output_length", "confounder", *shown, remedy("output_length"))


def _length_by_prompt(rows: list[Row]) -> dict[tuple[str, str], float]:
    """Mean output length of each prompt over its blocks."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in succeeded(rows):
        found.setdefault(prompt_key(row), []).append(int(row["output_tokens"]))
    return {key: float(np.mean(lengths)) for key, lengths in found.items()}


def cache(plain: Side, arm: Side, concurrency: int) -> Iterator[Finding]:
    """Prompt tokens that came from the prefix cache: per request, else the engine's counter, else known to be off."""
    hits = [_cached(side, concurrency) for side in (plain, arm)]
    shown = ["not reported" if h is None else str(h) for h in hits]
    if None not in hits:
        if hits[0] != hits[1]:
            yield Finding("cached_tokens", "confounder", shown[0], shown[1], remedy("cached_tokens"))
    elif not all(values_of(side, "resolved").get("prefix_cache") == {"false"} for side in (plain, arm)):
        yield Finding("cached_tokens", "unknown", shown[0], shown[1], "switch the prefix cache off")


def _cached(side: Side, concurrency: int) -> int | None:
    hits = [integer(row["cached_tokens"]) for row in side.measured(concurrency)]
    known = [h for h in hits if h is not None]
    return sum(known) if hits and len(known) == len(hits) else side.counted("cached_tokens", concurrency)
