"""Memory of a serving, in bytes."""

from __future__ import annotations

from harness.metrics.rows import Row, Rows, as_map, integer
from harness.metrics.value import Missing


def peak_memory(serving: Row, samples: Rows) -> int | Missing:
    """Peak bytes as the engine tells; where it does not, the highest sample of its processes' memory."""
    kinds = as_map(serving["memory"])
    for kind in ("peak_bytes", "sampled_peak_bytes"):
        if (peak := integer(kinds.get(kind))) is not None:
            return peak
    seen = [integer(s["memory_bytes"]) for s in samples if s["serving_id"] == serving["serving_id"]]
    return max((x for x in seen if x is not None), default=None) or Missing("not_reported")


def drafter_memory(serving: Row) -> int | Missing:
    """Bytes that the drafter alone costs: its weights and its state. Null for plain, and where neither was read."""
    if integer(serving["draft_budget"]) is None:
        return Missing("plain_arm")
    kinds = as_map(serving["memory"])
    parts = [integer(kinds.get(name)) for name in ("drafter_weights_bytes", "draft_state_bytes")]
    known = [p for p in parts if p is not None]
    return sum(known) if known else Missing("not_reported")


def kv_tokens_lost(servings: Rows, plain: Rows) -> int | Missing:
    """Capacity of the KV cache in tokens, the least over plain's servings less the least over the arm's: what its drafter took.

    0 where the rig pins the capacity; below 0 the arm had more. Null unless every serving tells.
    """
    ours, theirs = (_least_kv_tokens(rows) for rows in (servings, plain))
    return Missing("not_reported") if ours is None or theirs is None else theirs - ours


def _least_kv_tokens(servings: Rows) -> int | None:
    found = [integer(as_map(row["memory"]).get("kv_tokens")) for row in servings]
    known = [tokens for tokens in found if tokens is not None]
    return min(known) if known and len(known) == len(found) else None
