"""The section on answers: does an arm say what plain says, end as plain ends, loop, and answer right."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gates.acceptance import Recomputed, recomputed
from harness.gates.identity import Identity
from harness.gates.verdict import Both, Gates, Texts, gates
from harness.metrics import Maybe, Missing
from harness.report.run import FinishedRun


def gates_of(run: FinishedRun, arm: str, concurrency: int, classes: tuple[str, ...]) -> Gates | None:
    """The gates of an arm on some content classes; null for plain, and where either was not measured there."""
    rows, plain = run.measured(concurrency, classes), run.plain
    if plain is None or arm == plain or not rows[arm] or not rows[plain]:
        return None
    twin = rows[run.a_a] if run.a_a and run.a_a != arm else []
    greedy = run.config["sampler"]["temperature"] == 0
    return gates(Texts(rows[arm], rows[plain], twin, run.replays, run.grades, greedy, str(run.config["target"]["dtype"])))


def gate_lines(run: FinishedRun) -> Iterator[str]:
    """Per concurrency and arm one line; what is wrong first."""
    for level in run.levels():
        for arm in run.methods:
            found = gates_of(run, arm, level, tuple(run.classes(level)))
            if found is not None:
                marks = f"!! {', '.join(found.marks)} · " if found.marks else ""
                yield f"{arm} at concurrency {level}: {marks}{' · '.join(_parts(run, arm, level, found))}"


def _parts(run: FinishedRun, arm: str, level: int, found: Gates) -> Iterator[str]:
    yield _identity(found.identity)
    yield f"ends by itself {_share(found.stops)}"
    yield f"repetition {_share(found.repetition)}, loops {_share(found.looping)}"
    for task, (both, n) in found.accuracy.items():
        yield f"right by {task} {_share(both)}, n={n}"
    yield from _acceptance(recomputed(run.measured(level, tuple(run.classes(level)))[arm], run.replays, run.budget(arm)))


def _identity(found: Identity | Missing) -> str:
    if isinstance(found, Missing):
        return "sampled, so no identity" if found.reason == "not_greedy" else "no text to compare with plain"
    if not found.found:
        return f"identical to plain in {found.compared} of {found.compared}{_floor(found)}"
    kinds = ", ".join(f"{n} {kind}" for kind in ("numeric", "suspect", "unclassified") if (n := found.count(kind)))
    where = "" if isinstance(found.median_position, Missing) else f", median at token {found.median_position:.0f}"
    return f"{found.verdict}: {len(found.found)} of {found.compared} differ from plain ({kinds}{where}){_floor(found)}"


def _floor(found: Identity) -> str:
    """How often plain is identical to itself over boots, and how many differences come earlier than its own."""
    if not found.floor:
        return ", plain against itself not measured"
    earlier = f", {found.below_floor} earlier than plain's own" if found.found else ""
    return f", plain against itself {found.floor_identical} of {len(found.floor)}{earlier}"


def _share(both: Both) -> str:
    return f"{_percent(both.arm)} (plain {_percent(both.plain)})"


def _percent(value: Maybe) -> str:
    return "-" if isinstance(value, Missing) else f"{100 * value:.0f} %"


def _acceptance(found: Recomputed | Missing) -> Iterator[str]:
    if isinstance(found, Missing):
        return
    served, replayed = found.lengths
    if isinstance(served, Missing) or isinstance(replayed, Missing):
        return
    agree = "" if found.agree else ", they should agree within 0.02"
    yield f"accept length by teacher forcing {replayed:.3f}, served {served:.3f} on the same {found.requests} requests{agree}"
