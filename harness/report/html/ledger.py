"""The control ledger of a pair as the page lists it."""

from __future__ import annotations

from dataclasses import replace

from harness.control import Control, Finding
from harness.report.footnotes import alike, like_it


def told(control: Control) -> list[Finding]:
    """Every finding that counts; notes of one factor that differ in figures only are one line, of both arms' values."""
    notes = {(finding.factor, finding.remedy): finding for finding in control.of("note")}
    lines = list(control.findings_that_count)
    for factor in dict.fromkeys(factor for factor, _ in notes):
        for texts in alike(text for name, text in notes if name == factor):
            group = [notes[factor, text] for text in texts]
            plain, arm = (_seen([getattr(finding, side) for finding in group]) for side in ("plain", "arm"))
            name = "noticed" if factor == "flag" else factor
            lines.append(replace(group[0], factor=name, plain=plain, arm=arm, remedy=f"{texts[0]}{like_it(texts)}"))
    return lines


def _seen(values: list[str]) -> str:
    """Whether any was seen with an arm; of notes that say more than yes and no, every value once."""
    return "yes" if "yes" in values else ", ".join(dict.fromkeys(values))
