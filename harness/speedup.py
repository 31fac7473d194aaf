"""Speedup of an arm over plain: pairs from the rows, statistics over the pairs."""

from __future__ import annotations

from collections.abc import Mapping

from harness.metrics import Maybe, Missing, Row, Rows, length_parity, per_user_tps, request_tps
from harness.metrics.pairs import block_log_ratios, paired_log_ratios
from harness.stats import Speedup, block_speedup, paired_speedup


def output_speedup(arms: Mapping[str, Rows], arm: str, plain: str, concurrency: int) -> Speedup | Missing:
    """Ratio of output tokens per second, at one concurrency.

    At 1: per prompt `O / (ended - sent)`, paired within blocks, classes weighing equally. Above 1 the batch is the unit: per
    block the ratio of steady-window rates. `arms` maps every arm of the run to its measured rows at this concurrency.
    """
    if concurrency == 1:
        return per_prompt_speedup(arms, arm, plain)
    ratios = block_log_ratios(arms[arm], arms[plain], concurrency)
    if isinstance(ratios, Missing):
        return ratios
    return block_speedup(ratios, len({(r["prompt_set"], r["prompt_id"]) for r in arms[arm]}))


def per_prompt_speedup(arms: Mapping[str, Rows], arm: str, plain: str) -> Speedup | Missing:
    """Paired ratio of end-to-end output rates per prompt."""
    pairs = paired_log_ratios(arms, arm, plain, request_tps)
    return paired_speedup(pairs.log_ratio_BP, pairs.strata)


def decode_speedup(arms: Mapping[str, Rows], arm: str, plain: str, budgets: Mapping[str, int | None]) -> Speedup | Missing:
    """Paired ratio of decode rates `1000 / tpot_ms` per prompt: prefill left out. Refused where the stream is coalesced."""

    def rate(row: Row) -> Maybe:
        return per_user_tps(row, budgets[str(row["arm"])])

    pairs = paired_log_ratios(arms, arm, plain, rate)
    return paired_speedup(pairs.log_ratio_BP, pairs.strata)


def latency_speedup(arms: Mapping[str, Rows], arm: str, plain: str) -> Speedup | Missing:
    """Paired ratio of request times, plain over arm. Refused when output lengths differ by more than 1 % and were not forced:
    an arm that says less is not faster."""
    parity = length_parity(arms[plain], arms[arm])
    if isinstance(parity, Missing):
        return parity
    if not parity.comparable:
        return Missing("lengths_differ")
    pairs = paired_log_ratios(arms, arm, plain, lambda row: 1e9 / max(1, int(row["ended_ns"]) - int(row["sent_ns"])))
    return paired_speedup(pairs.log_ratio_BP, pairs.strata)
