"""Parts of the training answers: nested, of all classes alike, the same for the same seed, and whole where nothing is asked."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafters.train.prompts import ROOT
from drafters.train.recipe import read_recipe
from drafters.train.store import Answer, Asked, read_answers
from drafters.train.subset import subset

CLASSES = st.lists(st.sampled_from(["chat", "code", "math", "prose"]), min_size=1, max_size=60)


def answers_of(classes: list[str]) -> list[Answer]:
    return [Answer(Asked(f"{name}/{i}", name, "train", 0.0, 0), (1, 2), (3,)) for i, name in enumerate(classes)]


@given(CLASSES, st.data())
def test_a_smaller_subset_lies_in_a_larger_one_and_both_keep_the_order(classes: list[str], data: st.DataObject) -> None:
    answers = answers_of(classes)
    large = data.draw(st.integers(1, len(answers)))
    small = data.draw(st.integers(1, large))
    found, within = subset(answers, large, 20), subset(answers, small, 20)
    assert (len(found), len(within)) == (large, small)
    assert [a for a in answers if a in found] == found
    assert [a for a in found if a in within] == within


@given(CLASSES, st.data())
def test_every_class_has_its_share_within_half_as_many_answers_as_classes(classes: list[str], data: st.DataObject) -> None:
    answers = answers_of(classes)
    count = data.draw(st.integers(1, len(answers)))
    found = Counter(a.asked.content_class for a in subset(answers, count, 20))
    for name, size in Counter(classes).items():
        assert abs(found[name] - size * count / len(answers)) <= len(set(classes)) / 2


def test_null_is_all_and_so_is_their_number() -> None:
    answers = answers_of(["code", "chat", "code"])
    assert subset(answers, None, 20) == subset(answers, 3, 20) == answers


def test_another_seed_chooses_others_and_the_same_seed_the_same() -> None:
    answers = answers_of(["code", "chat"] * 50)
    assert subset(answers, 20, 20) == subset(answers, 20, 20) != subset(answers, 20, 21)


def test_the_quarter_of_the_shipped_answers_has_a_quarter_of_the_tokens() -> None:
    answers = read_answers(ROOT / "data/smollm2_135m", "train")
    share = [sum(len(a.output_ids) for a in part) for part in (subset(answers, 444, 20), answers)]
    assert share[0] / share[1] == pytest.approx(0.25, abs=0.01)


def test_more_answers_than_there_are_is_one_line_that_says_how_many_there_are() -> None:
    with pytest.raises(ValueError, match=r"^answers: 4 asked for, the data has 3; ask for fewer, or null for all$"):
        subset(answers_of(["code"] * 3), 4, 20)


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "true", "many"])
def test_a_number_of_answers_that_is_none_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(ValueError, match=r"^recipe 'eagle3': answers: .+$"):
        read_recipe("eagle3", [f"answers={value}"])


def test_a_recipe_without_the_key_goes_on_from_a_checkpoint_made_before_it_was_there() -> None:
    whole, part = read_recipe("eagle3", []), read_recipe("eagle3", ["answers=444"])
    assert '"answers"' not in whole.identity()
    assert '"answers": 444' in part.identity()
