"""What a launched engine told about itself, in the columns of SERVINGS."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.engines.base import Counters, Launched, Memory


def launch_facts(launched: Launched, host: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "argv": list(launched.argv),
        "env": dict(launched.env),
        "versions": {**versions, **launched.versions},
        "host": json_map(host),
        "startup_s": launched.startup_s,
        "load_s": launched.load_s,
        "graph_capture_s": launched.graph_capture_s,
    }


def memory_facts(memory: Memory, sampled_peak: int) -> dict[str, Any]:
    found = {name: value for name, value in asdict(memory).items() if name != "source" and value is not None}
    source = dict(memory.source)
    if sampled_peak:
        found["sampled_peak_bytes"] = sampled_peak
        source["sampled_peak_bytes"] = "highest sum of resident memory over the serving's processes"
    return {"memory": found, "memory_source": source}


def since(now: Counters | None, ready: Counters | None) -> dict[str, int]:
    """Counted since ready; a counter that was not reported is absent."""
    if now is None or ready is None:
        return {}
    before = asdict(ready)
    return {name: value - before[name] for name, value in asdict(now).items() if None not in (value, before[name])}


def json_map(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in values.items()}


def percentile_ms(samples_ns: Sequence[int], share: float) -> float | None:
    """The sample below which `share` of them lie (nearest rank), in ms."""
    ordered = sorted(samples_ns)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6 if ordered else None
