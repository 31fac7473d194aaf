"""What `samerig verdict` prints: a recommendation per traffic profile, then the decision matrix."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.report.run import FinishedRun
from harness.verdict import Recommendation
from harness.verdict_matrix import Matrix
from harness.verdict_profile import Weighed
from harness.verdict_scores import Scored

SURE = {
    "claim": "five blocks or more and an A/A arm: this can be claimed",
    "no_floor": "five blocks or more, but no A/A arm: not a claim",
    "screen": "two to four blocks: a screen, not a claim",
}
NOT_SURE = {
    "claim": "five blocks or more and an A/A arm",
    "no_floor": "five blocks or more, no A/A arm",
    "screen": "two to four blocks, a screen",
    "descriptive": "one block, descriptive",
    "uncovered": "too little was measured",
    "unmeasured": "not measured",
}
MOST_FACTORS = 4  # of those that confound an arm; the report lists every one with its values


def print_recommendation(found: Recommendation, console: Console) -> None:
    """The three arms and how sure, or that none is recommended; each arm's weighted speedup, and the reasons."""
    profile = found.profile
    console.print(f"[bold]{profile.name}[/]  {escape(profile.summary)}")
    _line(console, f"  {_headline(found)}")
    for one in found.weighed:
        _line(console, f"  {one.arm}: {_speedup(one)}")
    for reason in found.reasons:
        _line(console, f"  {reason}")


def _headline(found: Recommendation) -> str:
    if not found.is_recommended:
        return f"no arm is recommended, {found.baseline} stays · {NOT_SURE[found.sure]}"
    return f"primary {found.primary} · fallback {found.fallback} · baseline {found.baseline} · {SURE[found.sure]}"


def _speedup(one: Weighed) -> str:
    """The speedup over the cells that are comparable, never over others; then what confounds those."""
    if not one.measured:
        return "not measured"
    confounded = f"confounded by {_named(one.confounders)}"
    if one.speedup is None:
        return confounded
    interval = "no interval" if one.low is None or one.high is None else f"[{one.low:.2f}, {one.high:.2f}]"
    share = sum(m.part.share for m in one.compared)
    told = f"{one.speedup:.2f}x {interval} over {100 * share:.0f} % of the profile's tokens"
    return told if one.is_comparable else f"{told}; {confounded} in the rest of what was measured"


def _named(factors: Sequence[str]) -> str:
    """The first factors, and how many more."""
    more = f" and {len(factors) - MOST_FACTORS} more" if len(factors) > MOST_FACTORS else ""
    return f"{', '.join(factors[:MOST_FACTORS])}{more}"


def print_matrix(run: FinishedRun, matrix: Matrix, scored: Sequence[Scored], console: Console) -> None:
    """Criteria as rows, arms as columns; which score was measured and which stated; totals."""
    console.print(f"[bold]decision matrix {matrix.name}[/]  {escape(matrix.summary)}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("criterion", no_wrap=True)
    table.add_column("weight", justify="right")
    table.add_column("from", no_wrap=True)
    for one in scored:
        table.add_column(one.arm, justify="right")
    for criterion in matrix.criteria:
        source = criterion.measure or "stated"
        cells = (_score(one.scores[criterion.name]) for one in scored)
        table.add_row(escape(criterion.name), f"{criterion.weight:.2f}", source, *cells)
    table.add_row("[bold]total[/]", "", "", *(_score(one.total) for one in scored))
    console.print(table)
    if left := [c.name for c in matrix.criteria if scored and c.name not in scored[0].counted]:
        _line(console, f"  not in the total, for want of a score in some arm: {', '.join(left)}")
    console.print("[dim]scores 1 to 5; measured ones on a straight line between the matrix's worst and best; -: no score[/]")


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _line(console: Console, text: str) -> None:
    console.print(escape(textwrap.fill(text, max(60, console.width), subsequent_indent="      ", break_on_hyphens=False)))
