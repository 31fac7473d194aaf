"""The arithmetic of published numbers: ten seeded errors are caught, ten clean claims pass, rounding never accuses anybody."""

import csv
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.claims import arithmetic as a
from harness.claims.arithmetic import Budget, Mistake, printed
from harness.claims.build import FOLDER

Check = Callable[[], Mistake | None]
WEIGHTS = {"speed": 0.5, "memory": 0.3, "care": 0.2}

ERRORS: dict[str, tuple[str, Check]] = {
    "a speedup of 2.95 where 178.5 over 68.9 is 2.59": (
        "speedup_mismatch",
        lambda: a.speedup_mismatch(printed("2.95"), printed("178.5"), printed("68.9")),
    ),
    "a speedup read off the wrong row: 3.43 for 230.7 over 69.0": (
        "speedup_mismatch",
        lambda: a.speedup_mismatch(printed("3.43"), printed("230.7"), printed("69.0")),
    ),
    "a rate of 64 % recorded as a gain of 64 %, where 54 over 20 is 2.7": (
        "rate_as_gain",
        lambda: a.rate_as_gain(printed("0.64"), printed("0.64"), a.Printed(2.7, 2.7)),
    ),
    "5.4 tokens per step with three drafts": ("length_outside_budget", lambda: a.length_outside_budget(printed("5.4"), 3)),
    "an acceptance length below one": ("length_outside_budget", lambda: a.length_outside_budget(printed("0.834"), 7)),
    "an acceptance rate in percent": ("rate_outside_share", lambda: a.rate_outside_share(printed("64"))),
    "eight and eight, one of them with the anchor": (
        "anchor_in_budget",
        lambda: a.anchor_in_budget(Budget(8, counts_anchor=True), Budget(8, counts_anchor=False)),
    ),
    "a rate over eight positions of which one is the anchor": (
        "anchor_in_budget",
        lambda: a.anchor_in_rate(printed("4.50"), printed("0.500"), 8),
    ),
    "a headline over another drafter": ("baseline_not_plain", lambda: a.baseline_not_plain("mtp")),
    "a mean above all of its parts": (
        "average_outside_parts",
        lambda: a.average_outside_parts(printed("5.60"), [printed(x) for x in ("5.46", "5.28", "4.39", "4.79", "4.10")]),
    ),
    "a mean that equal weights do not give": (
        "average_outside_parts",
        lambda: a.average_outside_parts(printed("4.95"), [printed(x) for x in ("5.46", "5.28", "4.39", "4.79", "4.10")], True),
    ),
    "a total of 3.80 whose scores give 4.10": (
        "total_mismatch",
        lambda: a.total_mismatch(printed("3.80"), {"speed": 5, "memory": 4, "care": 2}, WEIGHTS),
    ),
    "1700 tokens/s of a model of 70 GB at 4.8 TB/s": (
        "beyond_bandwidth",
        lambda: a.beyond_bandwidth(printed("1700"), 1.0, 70e9, 4.8e12),
    ),
}

CLEAN: dict[str, Check] = {
    "MTP on the H200 card": lambda: a.speedup_mismatch(printed("2.59"), printed("178.5"), printed("68.9")),
    "DFlash 2 on the H200 card at 32": lambda: a.speedup_mismatch(printed("1.01"), printed("1525.3"), printed("1507.4")),
    "a before and after pair": lambda: a.speedup_mismatch(printed("1.98"), printed("24.51"), printed("12.37")),
    "a true gain equal to no rate": lambda: a.rate_as_gain(printed("1.70"), printed("0.64"), a.Printed(2.7, 2.7)),
    "a gain that happens to equal the rate": lambda: a.rate_as_gain(printed("0.64"), printed("0.64"), a.Printed(1.64, 1.64)),
    "every draft accepted": lambda: a.length_outside_budget(printed("8.0"), 7),
    "8 with the anchor is 7 without": lambda: a.anchor_in_budget(Budget(8, counts_anchor=True), Budget(7, counts_anchor=False)),
    "a rate that its length gives": lambda: a.anchor_in_rate(printed("3.5349"), printed("0.3621"), 7),
    "plain on the same rig": lambda: a.baseline_not_plain(None),
    "the mean of the card": lambda: a.average_outside_parts(
        printed("4.80"), [printed(x) for x in ("5.46", "5.28", "4.39", "4.79", "4.10")], True
    ),
    "a total that follows": lambda: a.total_mismatch(printed("4.10"), {"speed": 5, "memory": 4, "care": 2}, WEIGHTS),
    "68.9 tokens/s of a model of 54 GB at 4.8 TB/s": lambda: a.beyond_bandwidth(printed("68.9"), 1.0, 54e9, 4.8e12),
}


@pytest.mark.parametrize("claim", ERRORS)
def test_a_seeded_error_is_caught_under_its_name(claim: str) -> None:
    check, mistake = ERRORS[claim][0], ERRORS[claim][1]()
    assert mistake is not None
    assert mistake.check == check
    assert str(mistake).startswith(f"{check}: ")
    assert check in a.CHECKS


@pytest.mark.parametrize("claim", CLEAN)
def test_a_clean_claim_passes(claim: str) -> None:
    assert CLEAN[claim]() is None


def test_a_baseline_on_another_rig_is_not_plain() -> None:
    mistake = a.baseline_not_plain("plain", ["engine", "precision"])
    assert mistake is not None
    assert "engine, precision" in mistake.text


def test_every_speedup_of_the_card_follows_from_its_own_rates() -> None:
    with (FOLDER / "claims.csv").open(newline="", encoding="utf-8") as file:
        card = [row for row in list(csv.DictReader(file))[:60] if row["concurrency"]]
    plain = {(row["task"], row["concurrency"]): row["tok_s"] for row in card if row["draft_method"] == "none"}
    assert len(plain) == 15
    for row in card:
        base = printed(plain[row["task"], row["concurrency"]])
        assert a.speedup_mismatch(printed(row["speedup"]), printed(row["tok_s"]), base) is None
        off = printed(f"{float(row['speedup']) * 1.05:.2f}")
        assert a.speedup_mismatch(off, printed(row["tok_s"]), base) is not None


@settings(deadline=None, max_examples=50)
@given(st.floats(0.5, 5000), st.floats(0.5, 5000), st.integers(0, 3))
def test_rounding_never_makes_a_true_ratio_a_mistake(rate: float, base: float, digits: int) -> None:
    told = printed(f"{rate / base:.{digits}f}")
    assert a.speedup_mismatch(told, printed(f"{rate:.1f}"), printed(f"{base:.1f}")) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 16), min_size=1, max_size=40), st.integers(1, 16), st.integers(1, 4))
def test_a_chain_never_looks_as_if_it_counted_its_anchor(accepted: list[int], budget: int, digits: int) -> None:
    taken = [min(n, budget) for n in accepted]
    length, rate = 1 + sum(taken) / len(taken), sum(taken) / (budget * len(taken))
    assert a.anchor_in_rate(printed(f"{length:.{digits}f}"), printed(f"{rate:.{digits + 1}f}"), budget) is None
    assert a.length_outside_budget(printed(f"{length:.{digits}f}"), budget) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1, 8), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_no_weighting_of_true_parts_is_a_mistake(parts: list[float], random: object) -> None:
    weights = [random.random() + 0.01 for _ in parts]
    average = sum(w * p for w, p in zip(weights, parts, strict=True)) / sum(weights)
    assert a.average_outside_parts(printed(f"{average:.2f}"), [printed(f"{p:.2f}") for p in parts]) is None


def test_a_printed_number_is_known_to_half_a_unit_of_its_last_digit() -> None:
    assert (printed("2.59").low, printed("2.59").high) == pytest.approx((2.585, 2.595))
    assert (printed(7.0).low, printed(7.0).high) == (6.5, 7.5)
    assert (printed((1.96, 2.59)).low, printed((1.96, 2.59)).high) == pytest.approx((1.955, 2.595))
    with pytest.raises(ValueError, match="could not convert"):
        printed("fast")


def test_a_total_needs_the_same_criteria_on_both_sides() -> None:
    with pytest.raises(ValueError, match="care"):
        a.weighted_total({"speed": 5, "memory": 4}, WEIGHTS)
