"""What llama.cpp tells in its log and command line: drafter, sizes, seconds. Log lines of b11434 and xllamacpp 2026.10."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.config import Arm
from harness.engines.base import Memory
from harness.engines.server_dialect import Found

_STAMP = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) .*?(loading model|model loaded)", re.M)
_METHOD = re.compile(r"adding speculative implementation '([a-z0-9-]+)'")
_BUDGET = re.compile(r"\b(?:n_max|size_m)\s*=\s*(\d+)")
_WEIGHTS = re.compile(r"model buffer size =\s*([\d.]+) MiB")
_KV = re.compile(r"KV buffer size =\s*([\d.]+) MiB")
_DRAFT = "loading draft model"
MIB = 1 << 20


def word_after(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line; null where it is not given."""
    return next((argv[i + 1] for i, word in enumerate(argv[:-1]) if word == flag), None)


def log_method(log: str) -> tuple[str | None, int | None]:
    """The speculative implementation that the server added, and how many tokens it may draft; `none` for a silent log."""
    found = _METHOD.search(log)
    if found is None:
        return ("none" if "model loaded" in log else None), None
    budget = _BUDGET.search(log, found.end())
    return found.group(1), int(budget.group(1)) if budget else None


def load_seconds(log: str) -> float | None:
    """From `loading model` to `model loaded`, target and drafter together. Stamps are minutes, seconds, ms, us."""
    times: dict[str, float] = {}
    for minutes, seconds, ms, us, what in _STAMP.findall(log):
        times.setdefault(what, int(minutes) * 60 + int(seconds) + int(ms) / 1e3 + int(us) / 1e6)
    loading, loaded = times.get("loading model"), times.get("model loaded")
    return None if loading is None or loaded is None else round(loaded - loading, 6)


def found_memory(found: Found, arm: Arm) -> Memory:
    """Buffers as logged, those after the draft model's first line are the drafter's; capacity from /props."""
    target, _, drafter = found.log.partition(_DRAFT)
    weights, kv = _sum(_WEIGHTS, target), _sum(_KV, target)
    draft_weights = (_sum(_WEIGHTS, drafter) if drafter else None) if arm.checkpoint else 0
    props = found.info.get("/props", {})
    slots, context = props.get("total_slots"), props.get("default_generation_settings", {}).get("n_ctx")
    source = {
        "weights_bytes": "log: model buffers",
        "drafter_weights_bytes": "log: model buffers of the draft model",
        "kv_bytes": "log: KV buffers",
        "kv_tokens": "/props: slots times context",
        "draft_state_bytes": "log: KV buffers of the draft model",
    }
    values = {
        "weights_bytes": weights,
        "drafter_weights_bytes": draft_weights,
        "kv_bytes": kv,
        "kv_tokens": slots * context if slots and context else None,
        "draft_state_bytes": _sum(_KV, drafter) if drafter else None if arm.checkpoint else 0,
    }
    return Memory(**values, source={name: source[name] for name, value in values.items() if value is not None})


def _sum(pattern: re.Pattern[str], log: str) -> int | None:
    found = [float(size) for size in pattern.findall(log)]
    return round(sum(found) * MIB) if found else None
