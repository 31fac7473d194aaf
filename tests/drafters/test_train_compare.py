"""Two drafters on the same prompts: the difference is of pooled lengths, and prompts are drawn for both together."""

from __future__ import annotations

import numpy as np
import pytest

from drafters.train import compare
from drafters.train.evaluate import Acceptance

CLASSES = ("code",) * 20 + ("chat",) * 20


def accepted(seed: int, shift: int = 0) -> Acceptance:
    """Prompts that differ much from each other, and by `shift` more accepted in the last step of each."""
    random = np.random.default_rng(seed)
    steps = [list(random.binomial(4, chance, 30)) for chance in random.uniform(0.05, 0.9, len(CLASSES))]
    return Acceptance(5, CLASSES, tuple((*map(int, s[:-1]), int(s[-1]) + shift) for s in steps))


def test_the_paired_interval_is_narrower_than_the_two_of_the_cards_and_holds_the_difference() -> None:
    one, other = accepted(1, shift=1), accepted(1)
    gap = compare.difference(one, other)
    assert gap.value == pytest.approx(one.of().value - other.of().value)
    assert gap.value == pytest.approx(1 / 30)
    assert gap.low > 0
    assert gap.high - gap.low < 0.2 * (one.of().high - one.of().low)
    assert (gap.prompts, gap.steps) == (40, 1200)


def test_a_drafter_differs_from_itself_by_nothing_and_from_another_either_way() -> None:
    same = compare.difference(accepted(1), accepted(1))
    assert (same.value, same.low, same.high) == (0, 0, 0)
    gap, back = compare.difference(accepted(1), accepted(2)), compare.difference(accepted(2), accepted(1))
    assert gap.value == pytest.approx(-back.value)
    assert (gap.low, gap.high) == pytest.approx((-back.high, -back.low))


def test_other_prompts_are_not_compared_and_every_class_has_a_line() -> None:
    one = accepted(1)
    with pytest.raises(ValueError, match="other prompts"):
        compare.difference(one, Acceptance(5, CLASSES[::-1], one.steps))
    told = compare.lines(("dflash2", "dflash"), (one, accepted(2)))
    assert [line.split()[0] for line in told[1:]] == ["all", "chat", "code"]


@pytest.mark.parametrize("arguments", [["dflash2"], ["dflash2", "seed=3"]])
def test_one_recipe_alone_is_refused_in_one_line(arguments, capsys) -> None:
    assert compare.main(arguments) == 2
    assert capsys.readouterr().err.startswith("samerig: two recipes are needed; give python -m drafters.train.compare")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["dflash2", "nope"], "recipe 'nope' is unknown"),
        (["dflash2", "dflash2"], "both are the drafter in checkpoints/smollm2_135m/dflash2"),
        (["dflash2", "dflash", "out=training/x"], "both are the drafter in training/x"),
    ],
)
def test_a_wrong_second_drafter_is_told_before_the_first_is_measured(arguments, line, capsys, monkeypatch) -> None:
    monkeypatch.setattr("drafters.train.fit.Training", lambda _: pytest.fail("a training was opened"))
    assert compare.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"samerig: {line}")
