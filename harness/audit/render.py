"""An audit as text, the verdict first, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from harness.audit.account import Account, Fact
from harness.audit.compare import Audit
from harness.audit.difference import Difference

SCOPE = {"command": ", as far as the commands say", "published": ", as far as the sources say"}
NAME = 24  # characters of a factor's name that stand beside its values
COLOURS = {"CONTROLLED": "green", "IMPLIED": "yellow", "CONFOUNDED": "red", "UNKNOWN": "yellow"}


def sentence(audit: Audit) -> str:
    """What the verdict means for this pair, in one sentence."""
    confounders, unknown, implied = (", ".join(audit.named(kind)) for kind in ("confounder", "unknown", "implied"))
    moved = _treatment(audit)
    match audit.verdict:
        case "CONFOUNDED":
            beside = f"{moved} moved, and so did" if moved else "the drafter did not move, but"
            return f"{beside} {confounders}" + (f"; not stated: {unknown}" if unknown else "")
        case "UNKNOWN":
            return f"{moved or 'nothing'} moved; whether it is the only change cannot be told: {unknown}"
        case "IMPLIED":
            return (
                f"{moved or 'nothing that a side states'} moved, and {'with it' if moved else 'yet'} the engine moves {implied}"
            )
    scope = next((SCOPE[side.source] for side in (audit.a, audit.b) if side.source in SCOPE), "")
    return (f"only {moved} moved" if moved else "nothing moved") + scope


def _treatment(audit: Audit) -> str:
    names = audit.named("treatment")
    if "method" in names or any(name.startswith("draft_checkpoint") for name in names):
        return "the drafter"
    return "the budget" if "draft_budget" in names else "the drafter's options" if names else ""


def print_audit(audit: Audit, claims: Sequence[str], console: Console) -> None:
    """The verdict, the two sides, the table of differences, notes, and mistakes in the claims."""
    console.print(f"[bold {COLOURS[audit.verdict]}]{audit.verdict}[/]: {escape(sentence(audit))}")
    console.print(f"A  {escape(_side(audit.a))}\nB  {escape(_side(audit.b))}")
    _print_differences(audit.differences, console)
    for note in audit.notes:
        console.print(f"note: {escape(note)}")
    for claim in claims:
        console.print(f"claim {escape(claim)}")


def _side(account: Account) -> str:
    return f"{account.name} · {account.source} · {account.method}"


def _print_differences(differences: Sequence[Difference], console: Console) -> None:
    """A line of values each, and beneath it why and what to do, over the whole width; a long name has a line of its own."""
    named = max((len(d.factor) for d in differences if len(d.factor) <= NAME), default=0)
    for number, d in enumerate(differences):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=number == 0, expand=True)
        table.add_column("factor", width=max(named, len("factor")))
        for side in ("A", "B"):
            table.add_column(side, ratio=1, overflow="fold")
        table.add_column("class", width=len("confounder"))
        if len(d.factor) > NAME:
            console.print(escape(d.factor), soft_wrap=True)
        table.add_row("" if len(d.factor) > NAME else d.factor, *(escape(cell(fact)) for fact in (d.a, d.b)), d.kind)
        console.print(table)
        why = "; ".join(part for part in (d.why, d.remedy) if part not in ("", "-"))
        console.print(Padding(f"[dim]{escape(why)}[/]", (0, 0, 0, 4), expand=False))


def cell(fact: Fact | None) -> str:
    """A value with where it comes from."""
    if fact is None:
        return "not stated"
    origin = fact.where if fact.origin == "default" else fact.origin
    return f"{fact} · {origin}"


def as_json(audit: Audit, claims: Sequence[str]) -> dict[str, Any]:
    """Everything that the text says, for other programs."""
    return {
        "verdict": audit.verdict,
        "sentence": sentence(audit),
        "a": _account_json(audit.a),
        "b": _account_json(audit.b),
        "differences": [
            {
                "factor": d.factor,
                "kind": d.kind,
                "a": _fact_json(d.a),
                "b": _fact_json(d.b),
                "why": d.why,
                "remedy": d.remedy,
            }
            for d in audit.differences
        ],
        "notes": list(audit.notes),
        "claims": list(claims),
    }


def _account_json(account: Account) -> dict[str, Any]:
    return {
        "name": account.name,
        "source": account.source,
        "method": account.method,
        "unstated": sorted(account.unstated),
        "unknown_tokens": list(account.unknown_tokens),
    }


def _fact_json(fact: Fact | None) -> dict[str, Any] | None:
    return None if fact is None else {"value": fact.value, "origin": fact.origin, "where": fact.where}
