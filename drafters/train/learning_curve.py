"""How much a drafter gains from more data: one recipe trained on nested parts of the answers, with as many passes over each.

python -m drafters.train.learning_curve RECIPE COUNT|FOLDER .. [key=value ..]
python -m drafters.train.learning_curve eagle3 222 444 888
python -m drafters.train.learning_curve eagle3 training/eagle3_222/out training/eagle3_444/out

Every count is a training with `answers` set, and `steps` and `warmup` in proportion, under `training/RECIPE_COUNT`; one that
has a card there is not done again, one that was interrupted goes on. A folder is a drafter that is trained already; the last
point is the recipe's own. All numbers come from the cards. They go to `learning_curve/RECIPE.csv` and `.png` beside the
drafter's folder, and as a table to the output. Updates grow with the data, so a slope is of both. One training a point:
intervals are of prompts, not of seeds.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from drafters.train.command import run_recipe_command
from drafters.train.fit import Training
from drafters.train.prompts import ROOT
from drafters.train.recipe import Recipe, read_recipe

_SHOWN = ("all", "math", "code")
_DATA = re.compile(r"^\| data \| (\d+) sequences .*?, (\d+) answer tokens", re.M)
_UPDATES = re.compile(r"^\| updates \| (\d+) of ", re.M)
_ROW = re.compile(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \| (\d+) \|(?: [\d.]+ \|)?$", re.M)


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out acceptance length of one content class after one training, with its 95 % interval."""

    sequences: int
    answer_tokens: int
    updates: int
    content: str
    acceptance_length: float
    low: float
    high: float
    prompts: int
    steps: int


def read_card(path: Path) -> list[Point]:
    """The points of a card, one a class. Raises ValueError for a text that `card.write_card` did not write."""
    text = path.read_text(encoding="utf-8")
    data, updates, rows = _DATA.search(text), _UPDATES.search(text), _ROW.findall(text)
    if data is None or updates is None or not rows:
        raise ValueError(f"{path}: no card of a trained drafter; train it with python -m drafters.train")
    sizes = int(data[1]), int(data[2]), int(updates[1])
    return [Point(*sizes, name, float(v), float(low), float(high), int(p), int(s)) for name, v, low, high, p, s in rows]


def recipe_of(whole: str, overrides: list[str], count: int, total: int) -> Recipe:
    """The recipe on `count` of `total` answers: as many passes, and the same share of them in warm-up."""
    full = read_recipe(whole, overrides)
    steps, warmup = (round(number * count / total) for number in (full.steps, full.warmup))
    work = f"training/{full.name}_{count}"
    changed = [f"answers={count}", f"steps={max(steps, 1)}", f"warmup={warmup}", f"work={work}", f"out={work}/out"]
    return read_recipe(whole, [*overrides, *changed])


def trained(recipe: Recipe) -> list[Point]:
    """The points of the recipe, trained now if it has no card. Raises ValueError for a card of another length or amount."""
    card = ROOT / recipe.out / "README.md"
    if not card.exists():
        Training(recipe).run()
    points = read_card(card)
    if (points[0].sequences, points[0].updates) != (recipe.answers, recipe.steps):
        raise ValueError(f"{card}: of {points[0].updates} updates, asked for {recipe.steps}; remove {ROOT / recipe.work}")
    return points


def table(points: Iterable[Point]) -> str:
    """Markdown: a row a training, a column for each shown class."""
    trainings: dict[tuple[int, int, int], dict[str, str]] = {}
    for p in points:
        cell = f"{p.acceptance_length:.3f} [{p.low:.3f}, {p.high:.3f}]"
        trainings.setdefault((p.answer_tokens, p.sequences, p.updates), {})[p.content] = cell
    head = ["answer tokens", "sequences", "updates", *_SHOWN]
    rows = [[*map(str, sizes), *(cells.get(name, "") for name in _SHOWN)] for sizes, cells in trainings.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def write_csv(points: Sequence[Point], path: Path) -> None:
    rows = [asdict(p) for p in points]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(points: Sequence[Point], title: str, path: Path) -> None:
    """Acceptance length over answer tokens, tokens on a scale of doublings; classes moved aside so that intervals show."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ticks = sorted({p.answer_tokens for p in points})
    for name, aside, colour in zip(_SHOWN, (1.0, 1.03, 0.97), ("black", "tab:blue", "tab:orange"), strict=True):
        own = [p for p in points if p.content == name]
        values = [p.acceptance_length for p in own]
        spans = [[p.acceptance_length - p.low for p in own], [p.high - p.acceptance_length for p in own]]
        axis.errorbar([p.answer_tokens * aside for p in own], values, spans, marker="o", capsize=3, color=colour, label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick / 1000:.0f} k" for tick in ticks])
    axis.set(title=title, xlabel="answer tokens learned from", ylabel="held-out acceptance length")
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def updates_a_sequence(points: Iterable[Point]) -> str:
    """One number where all trainings have it, else from least to most."""
    found = sorted({f"{p.updates / p.sequences:.2f}" for p in points})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def main(arguments: list[str]) -> int:
    counts = sorted(int(a) for a in arguments[1:] if a.isdigit())
    overrides = [a for a in arguments[1:] if "=" in a]
    folders = [Path(a) for a in arguments[1:] if not a.isdigit() and a not in overrides]
    return run_recipe_command(__doc__ or "", arguments, lambda: measure(arguments[0], counts, overrides, folders))


def measure(name: str, counts: Sequence[int], overrides: list[str], folders: Sequence[Path] = ()) -> None:
    """Train what has no card yet, then write the curve and print its table."""
    full = read_recipe(name, overrides)
    torch.set_num_threads(full.threads)
    last = read_card(ROOT / full.out / "README.md")
    known = [read_card(folder / "README.md") for folder in folders]
    recipes = [recipe_of(name, overrides, count, last[0].sequences) for count in counts]
    trainings = sorted([*known, *map(trained, recipes)], key=lambda points: points[0].sequences)
    points = [point for training in (*trainings, last) for point in training]
    folder = (ROOT / full.out).parent / "learning_curve"
    folder.mkdir(exist_ok=True)
    write_csv(points, folder / f"{name}.csv")
    draw(points, f"{name}: {updates_a_sequence(points)} updates a sequence", folder / f"{name}.png")
    print(table(points))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
