"""Notes that differ in figures only are one line of the ledger; what counts is never merged."""

from itertools import pairwise

import pytest

from harness.control import Control, Finding
from harness.report.figures.axis import _ticks
from harness.report.html.ledger import told


def note(remedy, plain="yes", arm="no", factor="flag"):
    return Finding(factor, "note", plain, arm, remedy)


def test_notes_that_differ_in_figures_are_one_line_seen_with_both_arms():
    lag = [note("lag is 3.7 ms"), note("lag is 4.1 ms", "no", "yes"), note("lag is 5 ms")]
    lines = told(Control("ngram", "plain", (*lag, note("not settled", "no", "yes"))))
    assert [(line.plain, line.arm, line.remedy) for line in lines] == [
        ("yes", "yes", "lag is 3.7 ms (and 2 like it)"),
        ("no", "yes", "not settled"),
    ]


def test_findings_that_count_stand_first_and_each_by_itself():
    counts = (
        Finding("kv_tokens", "confounder", "64", "32", "pin 64"),
        Finding("kv_tokens", "confounder", "64", "16", "pin 65"),
    )
    assert told(Control("ngram", "plain", (note("a 1"), *counts, note("a 2")))) == [
        *counts,
        note("a 1 (and 1 like it)", factor="noticed"),
    ]


@pytest.mark.parametrize(("low", "high"), [(0.89, 1.11), (0.6, 1.6), (0.44, 2.6), (0.89, 9.0), (0.33, 12.0), (0.02, 1.1)])
def test_ticks_of_a_ratio_are_few_hold_one_and_reach_both_ends(low, high):
    ticks = _ticks(low, high)
    assert 1 in ticks
    assert 2 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)
    widest = max(b / a for a, b in pairwise(ticks))
    assert ticks[0] / low < widest * 1.3
    assert high / ticks[-1] < widest * 1.3
