"""What `samerig replay` prints: what moved, what the source does not state, and measured beside published."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.published import Published
from harness.replay import Replay
from harness.replay_claims import CONFOUNDED, NO_LEVEL, Compared, told
from harness.replay_run import Difference, Repeated, held
from harness.report.summary import Number

UNITS = {"tok_s": "tok/s", "speedup": "speedup", "acceptance_length": "length", "acceptance_rate": "rate"}


def print_replay(replay: Replay, published: Published | None, held: Sequence[str], console: Console) -> None:
    """Source, substitutions, sizes `held` otherwise than asked, what is left out, what the source does not state or did not
    hold, commands as published."""
    run = replay.published.run
    console.print(f"[bold]replay of {run.name}[/]  {escape(run.summary)}", soft_wrap=True)
    if run.source:
        _line(console, f"source: {run.source}")
    for line in (*_moved_lines(replay), *held, *(f"left out: {line}" for line in replay.skipped)):
        _line(console, line)
    for line in _source_lines(published) if published else ():
        _line(console, line)


def _moved_lines(replay: Replay) -> Iterator[str]:
    """One line per group of the rig, every key named."""
    if not replay.moved:
        yield "moved: nothing; the rig runs as it stands"
        return
    groups: dict[str, list[str]] = {}
    for one in replay.moved:
        group, _, key = one.key.partition(".")
        mark = "" if one.why == "substituted" else " (follows)"
        groups.setdefault(group, []).append(f"{key or group} {_value(one.was)} -> {_value(one.now)}{mark}")
    names = ", ".join(groups)
    yield f"moved: {len(replay.moved)} keys in {names}; this is another rig, and neither confirms nor refutes a claim"
    for group, changes in groups.items():
        yield f"  moved {group}: {' · '.join(changes)}"


def _source_lines(published: Published) -> Iterator[str]:
    if published.unstated:
        parts = (name if value is None else f"{name} ({_value(value)} here)" for name, value in published.unstated.items())
        yield f"not stated by the source: {', '.join(parts)}"
    if published.held_fixed:
        yield f"held fixed, as stated: {published.held_fixed}"
    if published.moved:
        yield f"moved in the source: {published.moved}"
    for arm, factors in published.factors.items():
        known = ", ".join(f"{name} {'not stated' if value is None else value}" for name, value in factors.items())
        yield f"  not held by the source: {arm}: {known}"
    for arm, commands in published.as_published.items():
        yield from (f"  as published, {arm}: {command}" for command in commands)


def print_claims(compared: Sequence[Compared], console: Console) -> None:
    """A row per published number that was measured or whose level was left out, then how many lie inside, and why the others
    have no answer."""
    table = _table("arm", "task", "c", "what", "published", "measured [95 %]", "inside")
    for c in compared:
        if c.value is None and c.note not in (NO_LEVEL, CONFOUNDED):
            continue
        cells = (c.claim.arm, c.claim.task or "-", str(c.claim.concurrency or "-"), UNITS[c.measure], _published(c))
        measured = CONFOUNDED if c.note == CONFOUNDED else _measured(c.value, c.low, c.high)
        table.add_row(*(escape(cell) for cell in (*cells, measured, _inside(c))))
    console.print(table)
    for line in told(list(compared)):
        _line(console, line)


def _inside(one: Compared) -> str:
    if one.value is None:
        return "-" if one.note == CONFOUNDED else "not measured"
    return one.note if one.inside is None else "yes" if one.inside else "no"


def print_repeated(differences: Sequence[Difference], repeated: Sequence[Repeated], console: Console) -> None:
    """Differences of environment, then a row per number of the stored run, then the count."""
    for one in differences:
        _line(console, f"environment differs: {one.what}: {one.stored} stored, {one.here} here")
    if not differences:
        console.print("environment: no difference in host, versions, resolved factors or code")
    table = _table("class", "c", "arm", "what", "stored [95 %]", "here [95 %]", "repeated")
    for r in repeated:
        n, here = r.stored, _interval(r.here) if r.here is not None else "-"
        table.add_row(*map(escape, (n.content_class, str(n.concurrency), n.arm, n.metric, _interval(n), here, _repeated(r))))
    console.print(table)
    count = held(list(repeated))
    confounded = f", {count['confounded']} not judged: the pair is confounded in one of the runs" if count["confounded"] else ""
    told = f"{count['held']} repeated, {count['did not']} did not, {count['no interval']} without an interval to judge by"
    _line(console, told + confounded)


def _repeated(one: Repeated) -> str:
    if one.here is None or one.here.value is None:
        return "not measured"
    if one.held is None:
        return "-" if one.is_confounded else "no interval"
    return "yes" if one.held else "no"


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        right = name in ("c", "published") or name.endswith("]")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _interval(number: Number) -> str:
    """A number with its interval; no number of a confounded pair."""
    return CONFOUNDED if number.is_confounded else _measured(number.value, number.low, number.high)


def _measured(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _published(compared: Compared) -> str:
    low, high = compared.published
    bound = f"{compared.claim.bound} " if compared.claim.bound else ""
    return bound + (f"{low:g}" if low == high else f"{low:g}-{high:g}")


def _value(value: Any) -> str:
    return "null" if value is None else str(value)


def _line(console: Console, text: str) -> None:
    width = max(60, console.width)
    console.print(escape(textwrap.fill(text, width, subsequent_indent="      ", break_on_hyphens=False)))
