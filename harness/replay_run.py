"""Somebody else's results folder on this machine: same configuration, same prompts, what of the environment differs, and
whether its numbers come out again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.asked import Prompts
from harness.compose import ComposedRun, ConfigError, compose_run
from harness.metrics import Row, Rows, as_map
from harness.replay_claims import with_interval
from harness.report.run import FinishedRun
from harness.report.summary import Number, cells, numbers
from harness.run_file import facts_of
from harness.workloads import set_label

METRICS = ("output_tps", "speedup", "acceptance_length")
VOLATILE = (
    "load",
    "available",
    "free",
    "used",
    "temperature",
    "clock_mhz",
    "uptime",
    "boot",
    "time",
    "compute_processes",
    "uuid",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something of the environment that is not the same: `what`, in the stored run and here."""

    what: str
    stored: str
    here: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """One number of the stored run beside the same cell here. `held` is null without intervals on both sides, and where
    either is a ratio of a confounded pair."""

    stored: Number
    here: Number | None
    held: bool | None

    @property
    def is_confounded(self) -> bool:
        return self.stored.is_confounded or (self.here is not None and self.here.is_confounded)


def stored_run(folder: Path) -> ComposedRun:
    """The configuration saved with the results, judged anew. Raises ConfigError that says whose it is."""
    try:
        return compose_run(str(folder / "config.yaml"))
    except ConfigError as error:
        version = "if another version of samerig saved it, replay it with that one, or compare runs with --measured"
        raise ConfigError(f"{folder / 'config.yaml'}: {error}; {version}") from None


def hash_line(folder: Path, composed: ComposedRun) -> str:
    """Whether the saved configuration is the one that was measured: its hash now against the one in run.json."""
    recorded = str(facts_of(folder).get("config_hash", "none"))
    if recorded == composed.config_hash:
        return f"configuration {composed.config_hash[:12]}: the same hash"
    return (
        f"configuration {composed.config_hash[:12]}: run.json has {recorded[:12]}; config.yaml was changed since,"
        " or was hashed by another version of samerig"
    )


def prompt_lines(run: FinishedRun, composed: ComposedRun, prompts: Prompts) -> Iterator[str]:
    """Prompts rendered here against the hashes of the stored requests, by prompt set and concurrency."""
    stored: dict[tuple[str, int], dict[str, str]] = {}
    for row in run.requests:
        if row["phase"] == "measured":
            key = str(row["prompt_set"]), int(row["concurrency"])
            stored.setdefault(key, {})[str(row["prompt_id"])] = str(row["prompt_hash"])
    by_label = {set_label(prompt_set): prompt_set for prompt_set in composed.run.workload.sets}
    same, differ = 0, []
    for (label, concurrency), hashes in stored.items():
        here = {asked.prompt_id: asked.prompt_hash for asked in prompts.measured(by_label[label], concurrency)}
        wrong = sorted(prompt_id for prompt_id, digest in hashes.items() if here.get(prompt_id) != digest)
        same += len(hashes) - len(wrong)
        differ += [f"prompts of {label} at concurrency {concurrency}: {len(wrong)} differ, first {wrong[0]}"] if wrong else []
    yield f"prompts: {same} have the same hash" + ("" if not differ else f", {len(differ)} cells differ")
    yield from differ


def environment(stored: FinishedRun, here: FinishedRun) -> list[Difference]:
    """Host facts, versions, code and resolved factors that differ between the servings of two runs."""
    found: list[Difference] = []
    for column in ("host", "versions", "resolved"):
        one, two = _values(stored.servings, column), _values(here.servings, column)
        names = [name for name in sorted(one.keys() | two.keys()) if not any(word in name.lower() for word in VOLATILE)]
        pairs = [(name, one.get(name, "not told"), two.get(name, "not told")) for name in names]
        found += [Difference(f"{column} {name}", before, after) for name, before, after in pairs if before != after]
    one_code, two_code = (str(run.facts.get("code_hash"))[:12] for run in (stored, here))
    return [*found, *([Difference("code", one_code, two_code)] if one_code != two_code else [])]


def _values(servings: Rows, column: str) -> dict[str, str]:
    """Every value that a key took, joined."""
    found: dict[str, set[str]] = {}
    for row in servings:
        for key, value in as_map(row[column]).items():
            found.setdefault(key, set()).add(str(value))
    return {key: " or ".join(sorted(values)) for key, values in found.items()}


def compare_runs(stored: FinishedRun, here: FinishedRun) -> list[Repeated]:
    """Rate, speedup and acceptance length of every cell of the stored run beside the same cell here, with intervals."""
    ours = _numbers(here)
    return [_repeated(number, ours.get(key)) for key, number in _numbers(stored).items() if number.value is not None]


def _numbers(run: FinishedRun) -> dict[tuple[str, int, str, str], Number]:
    found = {}
    for cell in cells(run):
        rows: list[Row] = cell.arms[cell.arm]
        for number in numbers(cell):
            if number.metric in METRICS:
                key = (cell.label, cell.concurrency, cell.arm, number.metric)
                found[key] = with_interval(number, rows) if number.metric == "output_tps" else number
    return found


def _repeated(stored: Number, here: Number | None) -> Repeated:
    """Held: the difference is within the two half widths combined as of independent runs; ratios and rates in logarithms.

    Each interval covers its own run's boots and prompts, so two runs of one rig should differ by no more than that.
    """
    if stored.is_confounded or here is None or here.is_confounded or here.value is None:
        return Repeated(stored, here, None)
    if None in (stored.low, stored.high, here.low, here.high):
        return Repeated(stored, here, None)
    one, two = _scaled(stored), _scaled(here)
    return Repeated(stored, here, abs(one[0] - two[0]) <= math.hypot(one[1], two[1]) + 1e-9)


def _scaled(number: Number) -> tuple[float, float]:
    """Centre and half width; logarithms for what is positive by nature."""
    values = (number.low or 0.0, number.high or 0.0)
    if number.metric != "acceptance_length" and values[0] > 0:
        values = (math.log(values[0]), math.log(values[1]))
    return (values[0] + values[1]) / 2, (values[1] - values[0]) / 2


def held(repeated: list[Repeated]) -> Mapping[str, int]:
    """How many numbers held, did not, are of confounded pairs, or have no interval."""
    count = {"held": 0, "did not": 0, "confounded": 0, "no interval": 0}
    for one in repeated:
        without = "confounded" if one.is_confounded else "no interval"
        count[without if one.held is None else "held" if one.held else "did not"] += 1
    return count
