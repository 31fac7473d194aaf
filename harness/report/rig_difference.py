"""Do two runs have one rig? Their saved configurations and what their servings found, factor by factor.

What differs decides what may stand side by side: a factor that changes the text or its acceptance refuses every number, one
that changes only the speed refuses speeds, the rest is a label. Ratios between two runs are never formed: machines drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.control.findings import show, values_of
from harness.report.run import FinishedRun

Kind = Literal["text", "speed", "label"]
# First match decides; names are those of config.yaml, `found.` before what the servings tell.
KINDS: tuple[tuple[str, Kind], ...] = (
    ("target.location", "label"),
    ("target.size", "label"),  # plans of memory read it, no engine does
    ("target.", "text"),
    ("sampler.", "text"),
    ("workload.name", "label"),
    ("workload.", "text"),
    ("engine.verify_rule", "text"),
    ("engine.interpreter", "label"),
    ("engine.binary", "label"),
    ("engine.url", "label"),
    ("engine.", "speed"),
    ("machine.max_load", "label"),
    ("machine.", "speed"),
    ("protocol.max_tokens_cap", "text"),
    ("protocol.load", "speed"),
    ("protocol.rate_rps", "speed"),
    ("found.target_hash", "text"),
    ("found.dtype", "text"),
    ("found.versions.pyarrow", "label"),
    ("found.versions.samerig", "label"),
    ("found.", "speed"),
)
EMPTY = ("null", "{}", "[]")
LEFT_OUT = ("name", "summary", "source", "arms", "concurrency")
HOST = ("cpu_model", "physical_cores", "usable_cores", "gpu_name", "gpu_count", "memory_bytes", "kernel", "governor")


@dataclass(frozen=True, slots=True)
class Difference:
    """A factor with its value in either run. `text` refuses every number side by side, `speed` speeds, `label` none."""

    factor: str
    kind: Kind
    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.factor} ({self.one} against {self.other})"


def differences(one: FinishedRun, other: FinishedRun) -> list[Difference]:
    """Every factor that differs, the gravest first."""
    a, b = factors(one), factors(other)
    names = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name) and not _is_empty_parent(name, a, b)]
    found = [_difference(name, a.get(name), b.get(name)) for name in names]
    return sorted(found, key=lambda d: ("text", "speed", "label").index(d.kind))


def _is_empty_parent(name: str, a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Whether one run has nothing where the other has factors below this name: those are told, each by itself."""
    return any(own.get(name) in EMPTY and any(key.startswith(f"{name}.") for key in other) for own, other in ((a, b), (b, a)))


def _difference(name: str, one: str | None, other: str | None) -> Difference:
    """What one run did not tell is no difference that was found: a label. What it did not ask for is one."""
    is_untold = name.startswith("found.") and None in (one, other)
    nothing = "not told" if name.startswith("found.") else "absent"
    return Difference(name, "label" if is_untold else kind_of(name), _short(one or nothing), _short(other or nothing))


def _short(value: str) -> str:
    """A checksum by its first digits, as elsewhere in the report; anything else whole."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", value)


def kind_of(factor: str) -> Kind:
    """What a difference in it forbids."""
    return next((kind for prefix, kind in KINDS if factor.startswith(prefix)), "label")


def factors(run: FinishedRun) -> dict[str, str]:
    """Configuration and findings by dotted name; what belongs to the arms is left out."""
    asked = {key: value for key, value in run.config.items() if key not in LEFT_OUT}
    return {**dict(_flat(asked)), **dict(_found(run))}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _flat({_entry(part): part for part in value}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "null" if value is None else str(value)


def _entry(part: Mapping[str, Any]) -> str:
    """A prompt set by name and depth, whatever the order of its keys in the file; another entry by its first value."""
    name = str(part.get("set", next(iter(part.values()))))
    return name if part.get("depth") is None else f"{name}@{part['depth']}"


def _found(run: FinishedRun) -> Iterator[tuple[str, str]]:
    """What plain's servings told: resolved factors, versions, host, code."""
    if run.plain is None:
        return
    side = run.side(run.plain, run.levels()[0]) if run.levels() else None
    if side is None:
        return
    yield from ((f"found.{key}", show(values)) for key, values in values_of(side, "resolved").items())
    yield from ((f"found.versions.{key}", show(values)) for key, values in values_of(side, "versions").items())
    yield from ((f"found.host.{key}", show(values)) for key, values in values_of(side, "host").items() if key in HOST)
    yield "code", show({str(row["code_hash"])[:12] for row in side.servings})


def arm_difference(one: FinishedRun, other: FinishedRun, arm: str) -> str:
    """What differs in the arm itself, in words; empty when nothing does. A label: budgets and drafters may well be compared."""
    a, b = ({k: v for k, v in _flat(run.config["arms"].get(arm, {})) if k != "label"} for run in (one, other))
    return ", ".join(
        f"{key} {a.get(key)} against {b.get(key)}" for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)
    )
