"""The learning curve over the amount of data: in proportion, from the cards alone, and the shipped one is that of its cards."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import pytest

from drafters.train import learning_curve
from drafters.train.learning_curve import Point, draw, main, read_card, recipe_of, table, trained, updates_a_sequence, write_csv
from drafters.train.prompts import ROOT

SHIPPED = ROOT / "checkpoints/smollm2_135m"
COLUMNS = {"content": str, "acceptance_length": float, "low": float, "high": float}


def of_csv(path: Path) -> list[Point]:
    with path.open(newline="", encoding="utf-8") as stream:
        return [Point(**{key: COLUMNS.get(key, int)(value) for key, value in row.items()}) for row in csv.DictReader(stream)]


def card_in(root: Path, sequences: int, updates: int) -> Path:
    """The shipped card, as a training of another amount would have written it."""
    text = (SHIPPED / "eagle3/README.md").read_text(encoding="utf-8")
    text = re.sub(r"\| \d+ sequences", f"| {sequences} sequences", text)
    text = re.sub(r"\| \d+ of 4 sequences", f"| {updates} of 4 sequences", text)
    path = root / "out" / "README.md"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("count", "steps", "warmup"), [(222, 213, 13), (444, 425, 25), (888, 850, 50), (1775, 1700, 100)])
def test_a_part_of_the_answers_has_as_many_passes_and_the_same_share_of_warm_up(count: int, steps: int, warmup: int) -> None:
    recipe = recipe_of("eagle3", ["steps=1700", "warmup=100"], count, 1775)
    assert (recipe.answers, recipe.steps, recipe.warmup) == (count, steps, warmup)
    assert recipe.out == f"training/eagle3_{count}/out"


def test_every_shipped_card_is_read_with_all_its_classes() -> None:
    for name in ("eagle3", "mtp", "dflash_start", "dflash", "dflash2", "dspark", "xpress"):
        points = read_card(SHIPPED / name / "README.md")
        assert [p.content for p in points] == ["all", "chat", "code", "math", "prose", "repetition", "structured"]
        assert sum(p.prompts for p in points[1:]) == points[0].prompts == 96
        assert sum(p.steps for p in points[1:]) == points[0].steps


def test_a_text_that_is_no_card_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# a drafter\n")
    with pytest.raises(ValueError, match=r"README.md: no card of a trained drafter; train it with"):
        read_card(tmp_path / "README.md")


def test_a_training_with_a_card_is_not_done_again_and_a_card_of_another_length_is_refused(tmp_path: Path) -> None:
    card = card_in(tmp_path, 444, 425)
    recipe = recipe_of("eagle3", ["steps=1700", "warmup=100"], 444, 1775).model_copy(update={"out": str(card.parent)})
    assert trained(recipe) == read_card(card)
    with pytest.raises(ValueError, match=r"of 425 updates, asked for 500; remove .*training/eagle3_444$"):
        trained(recipe.model_copy(update={"steps": 500}))


def test_csv_holds_every_point_and_the_figure_is_drawn(tmp_path: Path) -> None:
    points = read_card(card_in(tmp_path, 444, 425)) + read_card(SHIPPED / "eagle3/README.md")
    write_csv(points, tmp_path / "found.csv")
    assert of_csv(tmp_path / "found.csv") == points
    draw(points, "eagle3", tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_trained_drafters_are_points_in_the_order_of_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_curve, "ROOT", tmp_path)
    small, large = ("small", 444, 425), ("large", 888, 850)
    cards = {name: card_in(tmp_path / name, *sizes) for name, *sizes in (small, large)}
    shipped = tmp_path / "checkpoints/smollm2_135m/eagle3"
    shutil.copytree(SHIPPED / "eagle3", shipped)
    assert main(["eagle3", str(cards["large"].parent), str(cards["small"].parent)]) == 0
    points = of_csv(shipped.parent / "learning_curve/eagle3.csv")
    assert [p.sequences for p in points if p.content == "all"] == [444, 888, read_card(shipped / "README.md")[0].sequences]


def test_one_number_of_updates_a_sequence_is_told_as_one_and_others_as_a_range(tmp_path: Path) -> None:
    (point, *_), (other, *_) = read_card(card_in(tmp_path / "a", 100, 50)), read_card(card_in(tmp_path / "b", 200, 50))
    assert (updates_a_sequence([point, point]), updates_a_sequence([point, other])) == ("0.50", "0.25 to 0.50")


def test_an_unknown_recipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eagle9", "444"]) == 2
    assert capsys.readouterr().err.startswith("samerig: recipe 'eagle9' is unknown")


def test_the_shipped_table_is_that_of_its_csv_and_ends_with_the_shipped_card() -> None:
    points = of_csv(SHIPPED / "learning_curve/eagle3.csv")
    card = read_card(SHIPPED / "eagle3/README.md")
    assert points[-len(card) :] == card
    assert table(points) in (SHIPPED / "learning_curve/README.md").read_text(encoding="utf-8")
