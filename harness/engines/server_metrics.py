"""Prometheus text as the engines expose it, reduced to what is read: samples by metric name, labels kept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


Families = Mapping[str, list[Sample]]


def parse_metrics(text: str) -> dict[str, list[Sample]]:
    """Every sample of a scrape by its full name (`..._total`, `..._bucket`), in the order of the text."""
    families: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            name, labels, value = match.groups()
            families.setdefault(name, []).append(Sample(dict(_LABEL.findall(labels or "")), float(value)))
    return families


def total(families: Families, name: str) -> int | None:
    """Sum of a counter over all its labels (ranks, engines, models); null when it is not there. NaN samples are skipped."""
    samples = families.get(name)
    if not samples:
        return None
    return round(sum(sample.value for sample in samples if not math.isnan(sample.value)))
