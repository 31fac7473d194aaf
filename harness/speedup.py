"""Speedup of an arm over plain: pairs from the rows, statistics over the pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from harness.metrics import (
    Maybe,
    Missing,
    Row,
    Rows,
    length_parity,
    per_user_tps,
    prompt_key,
    request_tps,
    succeeded,
)
from harness.metrics.pairs import block_log_ratios, paired_log_ratios, shared_blocks
from harness.stats import Array, Finding, Speedup, block_speedup, crossed_bootstrap, holm, judge, noise_floor, paired_speedup


def output_speedup(arms: Mapping[str, Rows], arm: str, plain: str, concurrency: int) -> Speedup | Missing:
    """Ratio of output tokens per second, at one concurrency; `speedup_over_best` is the same over plain at its best.

    At 1: per prompt `O / (ended - sent)`, paired within blocks, classes weighing equally. Above 1 the batch is the unit: per
    block the ratio of steady-window rates. `arms` maps every arm of the run to its measured rows at this concurrency.
    """
    if concurrency == 1:
        return per_prompt_speedup(arms, arm, plain)
    ratios = block_log_ratios(arms[arm], arms[plain], concurrency)
    if isinstance(ratios, Missing):
        return ratios
    if not len(ratios):
        return Missing("no_whole_block")
    return block_speedup(ratios, len({(r["prompt_set"], r["prompt_id"]) for r in arms[arm]}))


def per_prompt_speedup(arms: Mapping[str, Rows], arm: str, plain: str) -> Speedup | Missing:
    """Paired ratio of end-to-end output rates per prompt."""
    return _paired(arms, arm, plain, request_tps)


def decode_speedup(arms: Mapping[str, Rows], arm: str, plain: str, budgets: Mapping[str, int | None]) -> Speedup | Missing:
    """Paired ratio of decode rates `1000 / tpot_ms` per prompt: prefill left out. Refused where the stream is coalesced."""

    def rate(row: Row) -> Maybe:
        return per_user_tps(row, budgets[str(row["arm"])])

    return _paired(arms, arm, plain, rate)


def latency_speedup(arms: Mapping[str, Rows], arm: str, plain: str) -> Speedup | Missing:
    """Paired ratio of request times, plain over arm. Refused when output lengths differ by more than 1 % and were not forced:
    an arm that says less is not faster."""
    parity = length_parity(arms[plain], arms[arm])
    if isinstance(parity, Missing):
        return parity
    if not parity.comparable:
        return Missing("lengths_differ")
    return _paired(arms, arm, plain, lambda row: 1e9 / max(1, int(row["ended_ns"]) - int(row["sent_ns"])))


def _paired(arms: Mapping[str, Rows], arm: str, plain: str, value: Callable[[Row], Maybe]) -> Speedup | Missing:
    """The speedup over the pairs of a per-request value, or the reason for which there are none."""
    pairs = paired_log_ratios(arms, arm, plain, value)
    return paired_speedup(pairs.log_ratio_BP, pairs.strata) if pairs.log_ratio_BP.size else _without_pairs(arms, value)


def _without_pairs(arms: Mapping[str, Rows], value: Callable[[Row], Maybe]) -> Missing:
    """No block is whole, no prompt succeeded everywhere, or the reason that most requests give for having no value."""
    blocks = shared_blocks(arms)
    if not blocks:
        return Missing("no_whole_block")
    rows = [row for found in arms.values() for row in succeeded(found)]
    there = {(str(row["arm"]), int(row["block"]), prompt_key(row)) for row in rows}
    whole = {key for _, _, key in there if all((name, block, key) in there for name in arms for block in blocks)}
    values = (value(row) for row in rows if prompt_key(row) in whole)
    reasons = Counter(found.reason for found in values if isinstance(found, Missing))
    return Missing(reasons.most_common(1)[0][0] if reasons else "no_pairs")


def claims(found: Mapping[str, Speedup | Missing], a_a: str | None, floor: float) -> dict[str, Finding]:
    """What may be said of each arm's speedup when several are looked at: Holm over the arms, and the noise floor for all.

    The A/A arm is no claim: it is judged by itself and without the floor that it sets.
    """
    known = {arm: speedup for arm, speedup in found.items() if not isinstance(speedup, Missing)}
    family = {arm: s.log.p_value for arm, s in known.items() if s.log is not None and arm != a_a}
    adjusted = holm(family)
    return {arm: judge(s, 0.0 if arm == a_a else floor, adjusted.get(arm)) for arm, s in known.items()}


def floor_of(found: Mapping[str, Speedup | Missing], a_a: str | None) -> float:
    """The noise floor of one line of the table, 0 without an A/A arm."""
    return noise_floor(found.get(a_a)) if a_a is not None else 0.0


def bootstrapped_speedup(
    arms: Mapping[str, Rows], arm: str, plain: str, concurrency: int
) -> tuple[float, float, float] | Missing:
    """The ratio of `output_speedup` with the interval of a crossed bootstrap: a check, too narrow for few blocks."""
    strata: tuple[str, ...] | None = None
    if concurrency == 1:
        pairs = paired_log_ratios(arms, arm, plain, request_tps)
        table, strata = pairs.log_ratio_BP, pairs.strata
    else:
        logs = block_log_ratios(arms[arm], arms[plain], concurrency)
        if isinstance(logs, Missing):
            return logs
        table = logs[:, None]
    if not table.size:
        return Missing("no_pairs")
    low, high = crossed_bootstrap(table, strata)
    return math.exp(_stratified_mean(table, strata)), math.exp(low), math.exp(high)


def _stratified_mean(table_BP: Array, strata: tuple[str, ...] | None) -> float:
    labels = np.array(strata or ["all"] * table_BP.shape[1])
    return float(np.mean([table_BP[:, labels == label].mean() for label in dict.fromkeys(labels.tolist())]))
