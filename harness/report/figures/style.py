"""The one look of every figure: an arm has the same colour, marker and hatch everywhere, and none of them alone tells it apart.

Colours are two sets, for light and for dark paper; in an SVG they are CSS variables, so that a page switches them. Markers and
hatches carry the same distinction in greyscale. A test measures contrast and distance under simulated colour blindness.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl


@dataclass(frozen=True, slots=True)
class Look:
    """How an arm is drawn. `light` and `dark` are its colour on either paper."""

    light: str
    dark: str
    marker: str
    hatch: str


@dataclass(frozen=True, slots=True)
class Paper:
    """Colours of everything that is no arm: `name` of the CSS variable, on light and on dark paper."""

    name: str
    light: str
    dark: str


LOOKS = {
    "plain": Look("#74787d", "#93979e", "o", ""),
    "ngram": Look("#c2802e", "#f0d848", "s", "///"),
    "mtp": Look("#159a68", "#86d296", "^", "\\\\\\"),
    "eagle3": Look("#276cc0", "#6f8cff", "D", "+++"),
    "dflash": Look("#8a3f78", "#ed98e8", "v", "xxx"),
    "dflash2": Look("#b03a12", "#d9602e", "P", "---"),
    "dspark": Look("#3998c5", "#aff0f1", "X", "|||"),
    "xpress": Look("#552899", "#8f70ac", "*", "//--"),
    "draft_model": Look("#6d0204", "#cb3a37", "<", "oo"),
    "ngram_simple": Look("#6c6442", "#f68f0c", "1", "///..."),
    "machinery": Look("#104455", "#407f76", "d", "\\\\\\..."),
    "plain_best": Look("#4c5157", "#aaadb2", ">", "|||..."),
    "plain2": Look("#2c3136", "#c8cdd2", "p", "..."),
}
SPARE = tuple(name for name in LOOKS if not name.startswith("plain"))

INK = Paper("ink", "#1b1f24", "#e8eaed")
MUTED = Paper("muted", "#5a626b", "#a3abb5")
RULE = Paper("rule", "#d5d9de", "#3a414a")
PAPER = Paper("paper", "#ffffff", "#15181d")
# Parts of a bar: a ramp of slate, so that no part has the colour of an arm; hatches tell neighbours apart.
PARTS = (
    Paper("part-1", "#465264", "#aab6c6"),
    Paper("part-2", "#8a98aa", "#8392a6"),
    Paper("part-3", "#c2ccd9", "#515e70"),
    Paper("part-4", "#e7ebf1", "#2d3642"),
)
PAPERS = (INK, MUTED, RULE, PAPER, *PARTS)

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": INK.light,
    "axes.titlecolor": INK.light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": RULE.light,
    "grid.linewidth": 0.6,
    "text.color": INK.light,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "hatch.linewidth": 0.6,
    "patch.linewidth": 0.8,
    "figure.facecolor": "none",
    "figure.dpi": 100.0,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
}


def styled(salt: str | None = None) -> AbstractContextManager[None]:
    """matplotlib in this style while the context lasts; `salt` makes the ids of an SVG the same every time."""
    context: Any = mpl.rc_context
    found: AbstractContextManager[None] = context({**RC, "svg.hashsalt": salt})
    return found


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """A look for every arm: its own by name, A/A arms that of `plain2`; unknown names take what is left, in order.

    Every shipped arm has its own. Raises ValueError when there are more arms than looks: two arms of one colour would be a lie.
    """
    found = {arm: LOOKS[known] for arm in arms if (known := _known(arm))}
    free = [name for name in SPARE if LOOKS[name] not in found.values()]
    unknown = [arm for arm in arms if arm not in found]
    if len(unknown) > len(free):
        raise ValueError(
            f"figures: {len(arms)} arms, but only {len(found) + len(free)} can be told apart; report fewer arms in one run"
        )
    return found | {arm: LOOKS[name] for arm, name in zip(unknown, free, strict=False)}


def _known(arm: str) -> str | None:
    """The name of its look; an A/A arm is plain with a number behind."""
    if arm in LOOKS:
        return arm
    return "plain2" if arm.rstrip("0123456789") == "plain" else None


def variables(dark: bool) -> dict[str, str]:
    """CSS variables of one paper: name -> colour."""
    arms = {f"arm-{name}": look.dark if dark else look.light for name, look in LOOKS.items()}
    return {paper.name: paper.dark if dark else paper.light for paper in PAPERS} | arms


def names_of_colours() -> dict[str, str]:
    """Colour as matplotlib writes it (light paper) -> CSS variable."""
    return {colour: name for name, colour in variables(dark=False).items() if name != PAPER.name}
