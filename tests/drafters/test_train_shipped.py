"""What a card says of where a training began, and of a drafter trained again beside the shipped one of its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drafters.train import __main__ as command
from drafters.train.card import start_row
from drafters.train.prompts import ROOT
from drafters.train.recipe import Recipe, read_recipe
from drafters.train.shipped import beside_shipped, compared

SHIPPED = ROOT / "checkpoints/smollm2_135m"
NAMES = ("eagle3", "mtp", "dflash_start", "dflash", "dflash2", "dspark", "xpress")


def card_in(folder: Path, name: str, all_prompts: str = "", **changes: str) -> Path:
    """The shipped card of a drafter with another row of all prompts, and other words."""
    text = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    if all_prompts:
        text = re.sub(r"^\| all \| [\d.]+ \| [\d.]+ \| [\d.]+ ", f"| all | {all_prompts} ", text, flags=re.M)
    for old, new in changes.items():
        text = text.replace(old.replace("_", " "), new)
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return folder / "README.md"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_card_says_which_trained_drafter_its_training_began_with(name: str) -> None:
    text = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    initial = read_recipe(name, []).initial
    assert ("| start |" in text) == (initial is not None) == (name in NAMES[3:])
    assert f"answer tokens (`data/smollm2_135m_620k`) |{start_row(initial)}\n| updates |" in text


@pytest.mark.parametrize(
    ("row", "inside", "overlap"),
    [
        ("1.520 | 1.480 | 1.570", "inside", "overlap"),
        ("1.500 | 1.450 | 1.560", "outside", "overlap"),
        ("1.650 | 1.600 | 1.700", "outside", "overlap"),
        ("1.450 | 1.400 | 1.500", "outside", "do not overlap"),
        ("1.650 | 1.610 | 1.700", "outside", "do not overlap"),
    ],
)
def test_one_line_says_whether_it_is_inside_the_shipped_interval_and_whether_the_two_overlap(tmp_path, row, inside, overlap):
    line = compared("dflash_start", card_in(tmp_path / "new", "dflash_start", row), SHIPPED / "dflash_start/README.md")
    value, low, high = row.split(" | ")
    assert line == (
        f"held-out acceptance length {value} [{low}, {high}] is {inside} the interval of the shipped dflash_start, "
        f"1.555 [1.509, 1.609]; the two intervals {overlap}"
    )


def test_another_amount_of_training_is_said_and_another_budget_is_not_compared(tmp_path) -> None:
    shipped = SHIPPED / "dflash_start/README.md"
    shorter = card_in(tmp_path / "a", "dflash_start", **{"1400_of_4": "12 of 4"})
    assert compared("dflash_start", shorter, shipped).endswith(
        "overlap (12 updates on 4313 sequences; the shipped one had 1400 on 4313)"
    )
    narrower = card_in(tmp_path / "b", "dflash_start", **{"budget_4": "budget 3"})
    assert compared("dflash_start", narrower, shipped) == (
        "the shipped dflash_start was measured with budget 4, up to 192 new tokens, "
        "this one with budget 3, up to 192 new tokens: not compared"
    )


class Trained:
    """A training that was over before it began."""

    def __init__(self, recipe: Recipe) -> None: ...

    def run(self) -> None: ...


def test_the_command_compares_what_lies_elsewhere_and_the_shipped_folder_with_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "Training", Trained)
    card_in(tmp_path / "out", "dspark")
    assert command.main(["dspark", f"out={tmp_path}/out", "initial=training/dflash_start/out"]) == 0
    assert "is inside the interval of the shipped dspark, 1.631 [1.575, 1.694]" in capsys.readouterr().out
    assert command.main(["dspark"]) == 0
    assert capsys.readouterr().out == ""
    assert beside_shipped(read_recipe("dspark", [])) is None


def test_make_drafters_begins_the_block_family_from_the_dflash_that_it_has_just_trained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = text[text.index("\ndrafters:") : text.index("\nnotebooks:")]
    first, second = re.findall(r"for recipe in ([\w ]+);", rule)
    assert first.split()[-1] == "dflash_start"
    assert second.split() == [name for name in NAMES if read_recipe(name, []).initial is not None]
    assert rule.count("initial=training/dflash_start/out") == 1
    recipe = read_recipe("xpress", ["out=training/xpress/out", "initial=training/dflash_start/out"])
    assert recipe.initial == read_recipe("dflash_start", ["out=training/${name}/out"]).out


def test_dflash_and_dflash_2_have_learned_as_long_from_the_same_drafter() -> None:
    one, two = (read_recipe(name, []) for name in ("dflash", "dflash2"))
    for key in ("data", "answers", "initial", "steps", "batch", "warmup", "learning_rate", "floor", "seed"):
        assert getattr(one, key) == getattr(two, key), key
    assert one.options["curriculum"] == two.options["curriculum"]
