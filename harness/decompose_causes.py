"""One sentence per arm that names what decides its speed, by fixed rules, with the numbers that the rule rests on.

All terms are in plain steps: a step of the arm takes `1 + draft + verify + machinery` of them and delivers `1 + gain` tokens.

0. measured and predicted (`predicted_speedup`, from the parts) lie more than 1.5-fold apart: disturbance, for the sweep ran
   at another time than the steps, and only something beside the drafter makes one of them so slow;
1. drafts nothing and does not win: its largest cost, for there was nothing to accept;
2. gains under a tenth of a token per step and does not win: acceptance;
3. wins, and a wider pass costs at most 15 % more than plain's: memory traffic, because the weights are read once whatever rows;
4. wins otherwise: acceptance;
5. does not win, and would without its largest cost alone, which is at least half of all: that cost;
6. does not win, and would if every draft were accepted: acceptance;
7. else its largest cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.decompose import Decomposition
from harness.metrics import Missing

Kind = Literal["draft cost", "verify cost", "acceptance", "memory traffic", "machinery", "disturbance"]
LITTLE_GAIN = 0.1
FREE_ROWS = 0.15
APART = 1.5


@dataclass(frozen=True, slots=True)
class Cause:
    """What decides, and the sentence that says so."""

    kind: Kind
    sentence: str


def cause(name: str, found: Decomposition) -> Cause:
    """The first rule above that holds. The outcome told is the speedup of decode steps, with its interval where it has one."""
    if disturbed := _disturbance(found):
        return Cause("disturbance", f"{name} {_outcome(found)}: no cause named. {disturbed} {_account(found)}")
    kind = _kind(found)
    joint = "; what weighs most is" if _is_level(found) else ":"  # where there is no effect, there is no cause of one
    return Cause(kind, f"{name} {_outcome(found)}{joint} {kind}. {_evidence(kind, found)} {_account(found)}")


def _disturbance(found: Decomposition) -> str:
    if isinstance(found.predicted, Missing) or 1 / APART <= found.measured.ratio / found.predicted <= APART:
        return ""
    return f"Its parts predict {found.predicted:.2f}x: something beside the drafter took time; repeat on an idle machine."


def _kind(found: Decomposition) -> Kind:
    costs: dict[Kind, float] = {"draft cost": found.draft, "verify cost": found.verify, "machinery": found.machinery}
    largest = max(costs, key=lambda kind: costs[kind])
    needed = sum(costs.values())
    if found.measured.ratio > 1:
        return "memory traffic" if found.verify <= FREE_ROWS else "acceptance"
    if found.coverage == 0:
        return largest
    if found.gain < LITTLE_GAIN:
        return "acceptance"
    without = needed - costs[largest]
    if found.gain > without and 2 * costs[largest] >= needed:
        return largest
    return "acceptance" if (found.budget or 0) > needed else largest


def _is_level(found: Decomposition) -> bool:
    measured = found.measured
    return measured.low is not None and measured.high is not None and measured.low <= 1 <= measured.high


def _outcome(found: Decomposition) -> str:
    measured = found.measured
    if _is_level(found):
        return f"is not told apart from plain in decoding ({measured.ratio:.2f}x [{measured.low:.2f}, {measured.high:.2f}])"
    word = "faster" if measured.ratio > 1 else "slower"
    interval = "" if measured.low is None else f" [{measured.low:.2f}, {measured.high:.2f}]"
    return f"decodes {word} than plain ({measured.ratio:.2f}x{interval}{', one block' if measured.low is None else ''})"


def _evidence(kind: Kind, found: Decomposition) -> str:
    arm, plain = found.arm, found.plain
    if kind == "draft cost":
        return (
            f"Drafting takes {arm.draft_ms:.2f} of {arm.total_ms:.2f} ms a step; plain's whole step is {plain.total_ms:.2f} ms."
        )
    if kind == "verify cost":
        return (
            f"The target's pass takes {arm.verify_ms:.2f} ms for {arm.width:.1f} rows a request, {plain.verify_ms:.2f} for"
            f" {plain.width:.0f}{_swept(found)}."
        )
    if kind == "machinery":
        return f"Sampling, acceptance and bookkeeping take {arm.machinery_ms:.2f} ms a step, {plain.machinery_ms:.2f} in plain."
    if kind == "memory traffic":
        return (
            f"A pass over {arm.width:.1f} rows costs {arm.verify_ms / plain.verify_ms:.2f}x plain's{_swept(found)}: it reads"
            " the weights once whatever rows, so drafts ride along."
        )
    needed = 1 + found.draft + found.verify + found.machinery
    return f"A step delivers {arm.tokens:.2f} tokens; break-even is {needed:.2f}{_reach(found)}."


def _swept(found: Decomposition) -> str:
    """The same by the width sweep, at the budget's full width."""
    wide = (found.budget or 0) + 1
    if wide not in found.by_width or 1 not in found.by_width:
        return ""
    return f" (width sweep: {wide} rows {found.by_width[wide] / found.by_width[1]:.2f}x of one)"


def _reach(found: Decomposition) -> str:
    if isinstance(found.break_even, Missing) or found.budget is None:
        return ""
    beyond = ", beyond any drafter at this budget" if found.break_even > found.budget + 1 else ""
    return f", an acceptance length of {found.break_even:.2f} of at most {found.budget + 1}{beyond}"


def _account(found: Decomposition) -> str:
    return (
        f"In plain steps: drafting {found.draft:+.2f}, wider pass {found.verify:+.2f}, machinery {found.machinery:+.2f};"
        f" tokens {found.gain:+.2f}."
    )
