"""Whether two arms did the same work: failures, lengths, endings, repetition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from harness.metrics.rows import Row, Rows, integers, outcome, prompt_key, succeeded
from harness.metrics.value import Maybe, Missing, mean

LENGTH_LIMIT = 0.01
LOOPING = 0.5


def error_rate(rows: Rows) -> Maybe:
    """Share of measured requests that failed or ended without a token. They are in no time metric."""
    outcomes = [outcome(row) for row in rows if row["phase"] == "measured"]
    return sum(o != "ok" for o in outcomes) / len(outcomes) if outcomes else Missing("no_requests")


def eos_share(rows: Rows) -> Maybe:
    """Share of successful requests that ended at a stop token."""
    return mean([float(row["finish"] == "stop") for row in succeeded(rows)])


def cap_hit_rate(rows: Rows) -> Maybe:
    """Share of successful requests that were cut by max_tokens."""
    return mean([float(row["finish"] == "length") for row in succeeded(rows)])


def text_ids(row: Row) -> list[int] | Missing:
    """The token ids that the engine named. An engine may count a token and not say which (id -1); refused where that is so of
    more than one in ten: such a text cannot be compared, read or called repetitive."""
    ids = integers(row["token_ids"])
    named = [token for token in ids if token >= 0]
    return named if 10 * len(named) >= 9 * len(ids) else Missing("not_reported")


def repetition_score(row: Row, n: int = 4) -> Maybe:
    """Share of a request's n-grams of token ids that occurred before in it: 0 when all are new, towards 1 in a loop."""
    tokens = text_ids(row)
    if isinstance(tokens, Missing):
        return tokens
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else Missing("too_short")


def stopped_early(row: Row, stop_ids: Collection[int]) -> bool:
    """True for a fixed-length request that delivered a stop token before its end: its tail is degenerate text."""
    return bool(row["ignore_eos"]) and any(token in stop_ids for token in integers(row["token_ids"])[:-1])


@dataclass(frozen=True, slots=True)
class LengthParity:
    """Difference in output length per prompt: median of |difference| / plain length, and the share of prompts that differ.

    `fixed`: all outputs were forced to a length, so parity holds by construction and the text's tail is degenerate.
    """

    median: float
    mismatched: float
    prompts: int
    fixed: bool

    @property
    def comparable(self) -> bool:
        """Whether latencies may be compared: forced lengths, or a median difference of at most 1 %."""
        return self.fixed or self.median <= LENGTH_LIMIT


def length_parity(plain: Rows, arm: Rows) -> LengthParity | Missing:
    """Parity of output lengths over the (block, prompt) that succeeded in both arms."""
    lengths = {_pair_key(row): int(row["output_tokens"]) for row in succeeded(plain)}
    pairs = [(lengths[key], row) for row in succeeded(arm) if (key := _pair_key(row)) in lengths]
    if not pairs:
        return Missing("no_pairs")
    off = [abs(int(row["output_tokens"]) - length) / length for length, row in pairs]
    fixed = all(bool(row["ignore_eos"]) for _, row in pairs)
    return LengthParity(float(np.median(off)), float(np.mean([o > 0 for o in off])), len(pairs), fixed)


def _pair_key(row: Row) -> tuple[int, int, str, str]:
    return int(row["block"]), int(row["concurrency"]), *prompt_key(row)


def looping_share(rows: Rows) -> Maybe:
    """Share of successful requests that loop: more than half of their 4-grams occurred before in them."""
    scores = [repetition_score(row) for row in succeeded(rows)]
    return mean([score if isinstance(score, Missing) else float(score > LOOPING) for score in scores])


def accuracy(grades: Rows) -> Maybe:
    """Share of the checked answers that are right."""
    return mean([float(grade["correct"]) for grade in grades]) if grades else Missing("not_graded")


@dataclass(frozen=True, slots=True)
class Worse:
    """Prompts on which only the arm fails, or only plain, of `prompts` compared. A prompt fails when most of its blocks do."""

    arm_only: int
    plain_only: int
    prompts: int

    @property
    def marked(self) -> bool:
        """Whether the arm is worse: a one-sided sign test over the prompts that differ gives under 5 %, or a quarter of all
        prompts, two at least, is lost on balance."""
        lost, differ = self.arm_only - self.plain_only, self.arm_only + self.plain_only
        by_chance = sum(comb(differ, k) for k in range(self.arm_only, differ + 1)) / 2**differ
        return lost > 0 and (by_chance < 0.05 or (lost >= 2 and lost >= self.prompts / 4))


def worse(arm: Mapping[tuple[str, str], Sequence[bool]], plain: Mapping[tuple[str, str], Sequence[bool]]) -> Worse | Missing:
    """Compare failures by prompt: per prompt the failures of its blocks, over the prompts that both arms have."""
    both = arm.keys() & plain.keys()
    if not both:
        return Missing("no_pairs")
    pairs = [(2 * sum(arm[p]) > len(arm[p]), 2 * sum(plain[p]) > len(plain[p])) for p in both]
    return Worse(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs), len(pairs))
