"""Does a published number follow from the numbers beside it? Pure checks: each returns a mistake, or null where there is none.

A number is known to half a unit of its last printed digit, so every check compares intervals: it objects only when no true
values within the rounding could have given what was printed. What is not stated is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Check = Literal[
    "speedup_mismatch",
    "rate_as_gain",
    "length_outside_budget",
    "rate_outside_share",
    "anchor_in_budget",
    "baseline_not_plain",
    "average_outside_parts",
    "total_mismatch",
    "beyond_bandwidth",
]
Bound = Literal["up to", "over", "about"]
ABOUT = 0.1
CHECKS: dict[Check, str] = {
    "speedup_mismatch": "the speedup does not follow from its own tokens per second",
    "rate_as_gain": "a share of accepted drafts is told as a gain in speed",
    "length_outside_budget": "an acceptance length below 1 or above K + 1",
    "rate_outside_share": "an acceptance rate below 0 or above 1",
    "anchor_in_budget": "the budget counts the anchor in one arm and not in the other",
    "baseline_not_plain": "the speedup is over something other than plain decoding on the same rig",
    "average_outside_parts": "an average that its parts cannot give",
    "total_mismatch": "a weighted total that does not follow from its scores and weights",
    "beyond_bandwidth": "more steps per second than the memory can read the weights",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """What does not add up, in one sentence with the numbers. `check` is a key of `CHECKS`."""

    check: Check
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed number: what it may have been before it was rounded."""

    low: float
    high: float

    def __str__(self) -> str:
        middle = (self.low + self.high) / 2
        return f"{middle:.4g}"


@dataclass(frozen=True, slots=True)
class Budget:
    """A draft budget as an engine prints it. `counts_anchor` is true where the number includes the anchor (or root) token."""

    printed: int
    counts_anchor: bool

    @property
    def drafts(self) -> int:
        return self.printed - self.counts_anchor


def printed(number: str | float | tuple[float, float]) -> Printed:
    """`"2.59"` is 2.585 to 2.595; a range is its two ends, each rounded. A float has the digits that Python prints, and one
    that is whole is taken as rounded to a unit. Raises ValueError on text that is no number."""
    if isinstance(number, tuple):
        low, high = (printed(end) for end in number)
        return Printed(low.low, high.high)
    text = number.strip() if isinstance(number, str) else repr(number)
    if isinstance(number, float) and number.is_integer():
        text = str(int(number))
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return Printed(float(text) - half, float(text) + half)


def speedup_mismatch(speedup: Printed, tok_s: Printed, baseline_tok_s: Printed, bound: Bound | None = None) -> Mistake | None:
    """The ratio of the two rates, within the rounding of all three. A speedup with a bound may not say more than that."""
    low, high = tok_s.low / baseline_tok_s.high, tok_s.high / max(baseline_tok_s.low, 1e-9)
    if _overlap(_meant(speedup, bound, high), Printed(low, high)):
        return None
    text = f"{tok_s} over {baseline_tok_s} tok/s is {low:.3f} to {high:.3f}, printed {speedup}"
    return Mistake("speedup_mismatch", text)


def _meant(speedup: Printed, bound: Bound | None, ratio: float) -> Printed:
    """What a printed speedup allows: `about` a tenth to either side, `up to` and `over` anything that is not less than it."""
    if bound == "about":
        return Printed(speedup.low * (1 - ABOUT), speedup.high * (1 + ABOUT))
    return speedup if bound is None else Printed(speedup.low, max(speedup.high, ratio))


def rate_as_gain(gain: Printed, rate: Printed, ratio: Printed | None = None) -> Mistake | None:
    """A gain (0.64 for +64 %) equal to the acceptance rate, where the ratio of the rates, if known, says another gain.

    Without the ratio, equality is no proof and nothing is said. Source: a 64 % rate recorded as "+64 %" at 20 -> 54 tok/s.
    """
    if not _overlap(gain, rate) or ratio is None or _overlap(gain, Printed(ratio.low - 1, ratio.high - 1)):
        return None
    return Mistake("rate_as_gain", f"a gain of {gain} equals the acceptance rate; the rates give {ratio} times")


def length_outside_budget(length: Printed, budget: int) -> Mistake | None:
    """`1 <= length <= K + 1`, the bonus included: a step emits its own token and at most K drafts."""
    if length.high >= 1 and length.low <= budget + 1:
        return None
    return Mistake("length_outside_budget", f"{length} tokens per step with {budget} drafts, at most {budget + 1}, at least 1")


def rate_outside_share(rate: Printed) -> Mistake | None:
    """A rate is a share of the drafted tokens."""
    return None if rate.high >= 0 and rate.low <= 1 else Mistake("rate_outside_share", f"a rate of {rate}")


def anchor_in_budget(one: Budget, other: Budget) -> Mistake | None:
    """Budgets that are equal as printed and unequal in drafts, because one of them counts the anchor."""
    if one.printed != other.printed or one.drafts == other.drafts:
        return None
    return Mistake("anchor_in_budget", f"both print {one.printed}: {one.drafts} drafts against {other.drafts}")


def anchor_in_rate(length: Printed, rate: Printed, budget: int) -> Mistake | None:
    """A fixed-length chain has `length = 1 + rate * K`. When that fails with K and holds with K - 1, the anchor was counted."""

    def expected(k: int) -> Printed:
        return Printed(1 + rate.low * k, 1 + rate.high * k)

    if budget < 2 or _overlap(length, expected(budget)) or not _overlap(length, expected(budget - 1)):
        return None
    text = f"a rate of {rate} gives {length} tokens per step with {budget - 1} drafts, not with {budget}"
    return Mistake("anchor_in_budget", text)


def baseline_not_plain(over: str | None, differs: Sequence[str] = ()) -> Mistake | None:
    """`over` names the baseline's method, null for plain; `differs` the factors in which a plain baseline is another rig."""
    if over not in (None, "plain"):
        return Mistake("baseline_not_plain", f"the speedup is over {over}, not over plain decoding")
    if differs:
        return Mistake("baseline_not_plain", f"the plain baseline differs in {', '.join(differs)} too")
    return None


def average_outside_parts(average: Printed, parts: Sequence[Printed], equal_weights: bool = False) -> Mistake | None:
    """Any average lies between the smallest and the largest part; one of equal weights is their mean."""
    if not parts:
        return None
    n = len(parts)
    mean = Printed(sum(p.low for p in parts) / n, sum(p.high for p in parts) / n)
    reach = mean if equal_weights else Printed(min(p.low for p in parts), max(p.high for p in parts))
    if _overlap(average, reach):
        return None
    kind = "mean" if equal_weights else "range"
    return Mistake(
        "average_outside_parts", f"printed {average}; the {kind} of its {n} parts is {reach.low:.3f} to {reach.high:.3f}"
    )


def range_of_parts(stated: tuple[Printed, Printed], parts: Sequence[Printed]) -> Mistake | None:
    """A range ends at its smallest and its largest part, within the rounding of both. `parts` are all that it is over."""
    spans = [Printed(end(p.low for p in parts), end(p.high for p in parts)) for end in (min, max)]
    if all(_overlap(*pair) for pair in zip(stated, spans, strict=True)):
        return None
    text = f"printed {stated[0]} to {stated[1]}; its {len(parts)} parts span {spans[0]} to {spans[1]}"
    return Mistake("average_outside_parts", text)


def weighted_total(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Sum of weight times score over the sum of the weights. Raises ValueError for criteria that do not match."""
    if scores.keys() != weights.keys() or not sum(weights.values()):
        odd = sorted(scores.keys() ^ weights.keys())
        raise ValueError(f"weighted_total: scores and weights must name the same criteria, and weigh something; {odd}")
    return sum(weights[name] * score for name, score in scores.items()) / sum(weights.values())


def total_mismatch(total: Printed, scores: Mapping[str, float], weights: Mapping[str, float]) -> Mistake | None:
    """A printed total against its own scores and weights."""
    found = weighted_total(scores, weights)
    if total.low - 1e-9 <= found <= total.high + 1e-9:
        return None
    return Mistake("total_mismatch", f"printed {total}, the scores and weights give {found:.2f}")


def beyond_bandwidth(tok_s: Printed, tokens_per_step: float, bytes_per_step: float, bytes_per_s: float) -> Mistake | None:
    """One request at a time reads every active weight once a step, so steps per second are at most bandwidth over bytes."""
    limit = bytes_per_s / bytes_per_step * tokens_per_step
    if tok_s.low <= limit:
        return None
    return Mistake("beyond_bandwidth", f"{tok_s} tok/s; reading the weights allows at most {limit:.0f}")


def _overlap(one: Printed, other: Printed) -> bool:
    slack = 1e-9 * max(1.0, abs(one.high), abs(other.high))
    return one.low <= other.high + slack and other.low <= one.high + slack
