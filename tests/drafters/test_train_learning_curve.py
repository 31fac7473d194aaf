"""The learning curve over the amount of data: in proportion, from the cards alone, and the shipped one is that of its cards."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from drafters.train.learning_curve import Point, draw, main, read_card, recipe_of, table, trained, write_csv
from drafters.train.prompts import ROOT

SHIPPED = ROOT / "checkpoints/smollm2_135m"
COLUMNS = {"content": str, "acceptance_length": float, "low": float, "high": float}


def of_csv(path: Path) -> list[Point]:
    with path.open(newline="", encoding="utf-8") as stream:
        return [Point(**{key: COLUMNS.get(key, int)(value) for key, value in row.items()}) for row in csv.DictReader(stream)]


def card_in(root: Path, sequences: int, updates: int) -> Path:
    """The shipped card, as a training of another amount would have written it."""
    text = (SHIPPED / "eagle3/README.md").read_text(encoding="utf-8")
    text = text.replace("| 1775 sequences", f"| {sequences} sequences").replace("| 1700 of", f"| {updates} of")
    path = root / "out" / "README.md"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("count", "steps", "warmup"), [(222, 213, 13), (444, 425, 25), (888, 850, 50), (1775, 1700, 100)])
def test_a_part_of_the_answers_has_as_many_passes_and_the_same_share_of_warm_up(count: int, steps: int, warmup: int) -> None:
    recipe = recipe_of("eagle3", [], count, 1775)
    assert (recipe.answers, recipe.steps, recipe.warmup) == (count, steps, warmup)
    assert recipe.out == f"training/eagle3_{count}/out"


def test_every_shipped_card_is_read_with_all_its_classes() -> None:
    for name in ("eagle3", "mtp", "dflash", "dflash2", "dspark", "xpress"):
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
    recipe = recipe_of("eagle3", [], 444, 1775).model_copy(update={"out": str(card.parent)})
    assert trained(recipe) == read_card(card)
    with pytest.raises(ValueError, match=r"of 425 updates, asked for 500; remove .*training/eagle3_444$"):
        trained(recipe.model_copy(update={"steps": 500}))


def test_csv_holds_every_point_and_the_figure_is_drawn(tmp_path: Path) -> None:
    points = read_card(card_in(tmp_path, 444, 425)) + read_card(SHIPPED / "eagle3/README.md")
    write_csv(points, tmp_path / "found.csv")
    assert of_csv(tmp_path / "found.csv") == points
    draw(points, "eagle3", tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_recipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eagle9", "444"]) == 2
    assert capsys.readouterr().err.startswith("samerig: recipe 'eagle9' is unknown")


def test_the_shipped_table_is_that_of_its_csv_and_ends_with_the_shipped_card() -> None:
    points = of_csv(SHIPPED / "learning_curve/eagle3.csv")
    card = read_card(SHIPPED / "eagle3/README.md")
    assert points[-len(card) :] == card
    assert table(points) in (SHIPPED / "learning_curve/README.md").read_text(encoding="utf-8")
