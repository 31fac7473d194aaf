"""What stands below a table: control verdicts with their findings, claims that could not be made, depths, notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from harness.control import Control, Finding
from harness.metrics import LENGTH_LIMIT, Row
from harness.metrics.load import is_one_wave
from harness.report.refusals import refusals
from harness.report.run import FinishedRun
from harness.report.summary import ALL, Number
from harness.report.table import Line, verdict_of
from harness.stats import CLAIM_BLOCKS, standard_errors

Groups = Mapping[str, Mapping[str, Line]]


def control_lines(run: FinishedRun, concurrency: int, groups: Groups) -> Iterator[str]:
    """Per arm: the control verdict with its findings, lengths, and differences that could not be detected.

    Then pairs of drafters between which something differs that does not show against plain.
    """
    seen: set[str] = set()
    for arm in run.methods:
        control = run.control(arm, concurrency)
        if control is None:
            if arm != run.plain:
                yield f"{arm}: not measured beside {run.plain} at concurrency {concurrency} yet"
            continue
        verdicts = {name: verdict_of(arms[arm]) for name, arms in groups.items() if name != ALL}
        yield f"control: {arm} against {control.plain} {_in_classes(control, verdicts)}{_lengths(arm, groups)}"
        yield from _findings(control)
        seen |= {finding.factor for finding in control.findings}
        for name, arms in groups.items():
            if "speedup" not in arms[arm]:
                continue  # plain at its best is no arm of the table's speedups
            verdict, _, claim = arms[arm]["speedup"].note.partition(": ")
            if claim.startswith("no detected") and verdict != "CONFOUNDED":
                yield f"  ~ {name}: {claim}"
    yield from _wide_lines(run.complete_blocks(), groups)
    yield from _pair_lines(run, concurrency, seen)
    yield from _wave_lines(run, concurrency)
    yield from refusals(groups)


def _wave_lines(run: FinishedRun, concurrency: int) -> Iterator[str]:
    """That a cell asked no more requests than ran at once: `metrics.load.rate_window`."""
    cells: dict[str, list[Row]] = {}
    for rows in run.measured(concurrency, tuple(run.classes(concurrency))).values():
        for row in rows:
            cells.setdefault(str(row["cell_id"]), []).append(row)
    if run.config["protocol"]["load"] == "closed" and any(is_one_wave(cell, concurrency) for cell in cells.values()):
        yield "rates: from first send to last end, ramp and tail included: one wave fills the slots once (see protocol.waves)"


def _wide_lines(blocks: int, groups: Groups) -> Iterator[str]:
    """What `detectable` means, and how much of a width is for want of boots: told once below differences not detected."""
    claims = [line["speedup"].note for arms in groups.values() for line in arms.values() if "speedup" in line]
    if blocks < 2 or not any("no detected" in claim for claim in claims):
        return
    few = standard_errors(blocks)
    want = f", {standard_errors(CLAIM_BLOCKS):.1f} with {CLAIM_BLOCKS}" if blocks < CLAIM_BLOCKS else ""
    yield (
        f"  ~ how wide and why: {blocks} boots per arm say little of how much boots differ, so an interval reaches up to"
        f" {few:.1f} standard errors to each side (2.0 with very many boots{want}). Detectable is the difference that"
        " this design would find in four runs of five: no detected difference does not say that there is none"
    )


def _in_classes(control: Control, verdicts: Mapping[str, str]) -> str:
    """The verdict, and where classes of one level differ, which class has which."""
    known = {name: verdict for name, verdict in verdicts.items() if verdict}
    if len(set(known.values())) < 2:
        return control.verdict
    return ", ".join(
        f"{verdict} in {' '.join(n for n in known if known[n] == verdict)}" for verdict in dict.fromkeys(known.values())
    )


def _pair_lines(run: FinishedRun, concurrency: int, seen: set[str]) -> Iterator[str]:
    """Two drafters that are each comparable with plain may still not be with each other."""
    drafters = [arm for arm, method in run.methods.items() if method != "plain"]
    for one, other in combinations(drafters, 2):
        control = run.pair(one, other, concurrency)
        new = [f for f in control.findings if f.factor not in seen and f.kind != "note"] if control else []
        if control and new:
            control = replace(control, findings=tuple(new))
            yield f"control: {other} against {one} {control.verdict}"
            yield from _findings(control)


def _findings(control: Control) -> Iterator[str]:
    for kind, label in (("confounder", "confounded by"), ("unknown", "unknown"), ("implied", "implied")):
        for finding in control.findings:
            if finding.kind == kind:
                yield f"  {label} {finding}"


def _lengths(arm: str, groups: Groups) -> str:
    """The largest median difference in output length over the classes."""
    found: list[Number] = [n for arms in groups.values() if (n := arms[arm].get("length_difference")) and n.value is not None]
    if not found:
        return ""
    worst = max(found, key=lambda n: n.value or 0)
    label = " (fixed length)" if worst.note else " (latencies not comparable)" if (worst.value or 0) > LENGTH_LIMIT else ""
    return f" · output lengths differ by {100 * (worst.value or 0):.1f} % at the median{label}"


def depth_lines(groups: Groups) -> Iterator[str]:
    """Prefill rate by depth (prompts of up to so many tokens), for content classes whose prompts span several."""
    for name in (name for name in groups if name != ALL):
        found = {arm: _by_depth(line) for arm, line in groups[name].items()}
        if max(len(rates) for rates in found.values()) > 1:
            arms = (f"{arm} " + ", ".join(f"{rate:.0f} @≤{depth}" for depth, rate in rates) for arm, rates in found.items())
            yield f"prefill tok/s by depth, {name}: {'; '.join(arms)}"


def _by_depth(line: Line) -> list[tuple[str, float]]:
    parts = [(re.fullmatch(r"prefill_tps_to_(\d+)_p50", name), n.value) for name, n in line.items()]
    return [(match[1], rate) for match, rate in parts if match and rate is not None]


def note_lines(run: FinishedRun) -> Iterator[str]:
    """Notes of all pairs and levels, told once; of notes that differ in figures only, the first and how many there are."""
    controls = (run.control(arm, level) for level in run.levels() for arm in run.methods)
    findings = dict.fromkeys(f for control in controls if control for f in control.of("note"))
    for texts in alike(dict.fromkeys(_note(finding) for finding in findings)):
        yield f"note: {texts[0]}{like_it(texts)}"


def alike(texts: Iterable[str]) -> list[list[str]]:
    """Texts that differ in figures only, together."""
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(re.sub(r"[\d.]+", "", text), []).append(text)
    return list(found.values())


def like_it(texts: Sequence[str]) -> str:
    """How many more there are, behind the first."""
    return f" (and {len(texts) - 1} like it)" if len(texts) > 1 else ""


def _note(finding: Finding) -> str:
    return finding.remedy if finding.factor == "flag" else str(finding)
