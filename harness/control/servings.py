"""Findings from the servings: what the engine resolved, what was built, where and when it ran."""

from __future__ import annotations

from harness.control.findings import Finding, Kind, Side, items_of, show, values_of
from harness.metrics import Row, Rows, is_null

TREATMENT = ("draft", "method", "speculat")
IMPLIED = {
    "kv_tokens": "the drafter takes memory from the KV cache; pin engine.kv_tokens",
    "kv_bytes": "the drafter takes memory from the KV cache; pin engine.kv_tokens",
    "graph_batch_sizes": "verify widths need other graph sizes; pin engine.graph_batch_sizes",
    "async_scheduling": "some drafters switch it off; switch it off for every arm",
}
VOLATILE = ("load", "available", "free", "used", "temperature", "clock", "mhz", "steal", "uptime", "power_w", "time", "pid")
CLOCK_LIMIT = 0.03


def is_treatment(factor: str) -> bool:
    """True for the drafter, its method and its budget: a dotted part of the name starts so."""
    return any(part.startswith(TREATMENT) for part in factor.split("."))


def resolved_factors(plain: Side, arm: Side) -> list[Finding]:
    """Factors as the engine resolved them, the treatment left out."""
    theirs, ours, findings = values_of(plain, "resolved"), values_of(arm, "resolved"), []
    if not ours or not theirs:
        return [Finding("resolved", "unknown", show(theirs), show(ours), "the engine did not tell its configuration")]
    for factor in sorted(ours.keys() | theirs.keys()):
        a, b = theirs.get(factor, set()), ours.get(factor, set())
        if is_treatment(factor):
            continue
        if not a or not b or "null" in a | b:
            findings.append(Finding(factor, "unknown", show(a), show(b), "not readable in every arm"))
        elif len(a | b) > 1:
            kind: Kind = "implied" if factor in IMPLIED else "confounder"
            findings.append(Finding(factor, kind, show(a), show(b), IMPLIED.get(factor, "make it equal in the rig")))
    return findings


def builds(plain: Side, arm: Side) -> list[Finding]:
    """Hashes of configuration and code, versions, environment, and what the harness itself called invalid."""
    findings = []
    for column, remedy in (("config_hash", "one run has one configuration"), ("code_hash", "measure both with the same code")):
        a, b = ({str(row[column])[:12] for row in side.servings} for side in (plain, arm))
        if len(a | b) > 1:
            findings.append(Finding(column, "confounder", show(a), show(b), remedy))
    for column, remedy in (("versions", "use the same build for every arm"), ("env", "set it for every arm or for none")):
        theirs, ours = values_of(plain, column), values_of(arm, column)
        for name in sorted(theirs.keys() | ours.keys()):
            a, b = theirs.get(name, set()), ours.get(name, set())
            if a != b or len(a) > 1:
                findings.append(Finding(f"{column}: {name}", "confounder", show(a), show(b), remedy))
    a, b = items_of(plain, "invalid"), items_of(arm, "invalid")
    if a | b:
        findings.append(Finding("invalid serving", "confounder", show(a, "-"), show(b, "-"), "repeat the block"))
    return findings


def sessions(plain: Side, arm: Side, concurrency: int) -> list[Finding]:
    """Cells of a resumed run that the two arms measured in different sessions. No speedup uses them, so this is a note."""
    session_of = {str(row["serving_id"]): str(row["session_id"]) for side in (plain, arm) for row in side.servings}
    a, b = ({_block_and_set(r): session_of[str(r["serving_id"])] for r in s.measured(concurrency)} for s in (plain, arm))
    mixed = sorted({block for block, name in a.keys() & b.keys() if a[block, name] != b[block, name]})
    remedy = "machines drift between sessions, so no speedup uses these cells; --fresh measures all of them in one"
    return [Finding(f"session of block {n}", "note", "one session", "another", remedy) for n in mixed]


def _block_and_set(row: Row) -> tuple[int, str]:
    return int(row["block"]), str(row["prompt_set"])


def host(plain: Side, arm: Side) -> list[Finding]:
    """Host facts, mean clock, throttling, and other processes."""
    theirs, ours, findings = values_of(plain, "host"), values_of(arm, "host"), []
    for fact in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(fact, set()), ours.get(fact, set())
        if a != b and not any(word in fact.lower() for word in VOLATILE):
            findings.append(Finding(f"host {fact}", "confounder", show(a), show(b), "hold the machine still between arms"))
    a, b = items_of(plain, "throttle_reasons"), items_of(arm, "throttle_reasons")
    if a != b:
        findings.append(Finding("throttling", "confounder", show(a, "none"), show(b, "none"), "lock clocks or power"))
    a, b = items_of(plain, "foreign_processes"), items_of(arm, "foreign_processes")
    if a | b:
        seen = f"{len(a)} seen", f"{len(b)} seen"
        findings.append(Finding("other processes", "note", *seen, "an idle machine gives tighter intervals"))
    return [*findings, *_clocks(plain, arm), *_flags(plain, arm)]


def _flags(plain: Side, arm: Side) -> list[Finding]:
    """What the harness observed and wants told; it changes no verdict."""
    a, b = items_of(plain, "flags"), items_of(arm, "flags")
    return [Finding("flag", "note", "yes" if f in a else "no", "yes" if f in b else "no", f) for f in sorted(a | b)]


def _clocks(plain: Side, arm: Side) -> list[Finding]:
    """Mean clock per device, where it was sampled."""
    findings = []
    for device in sorted({str(s["device"]) for s in plain.samples} & {str(s["device"]) for s in arm.samples}):
        a, b = _mean_clock(plain.samples, device), _mean_clock(arm.samples, device)
        if a and b and abs(b / a - 1) > CLOCK_LIMIT:
            shown = f"{a:.0f} MHz", f"{b:.0f} MHz"
            findings.append(Finding(f"clock of {device}", "confounder", *shown, "lock the clock, or add blocks"))
    return findings


def _mean_clock(samples: Rows, device: str) -> float | None:
    clocks = [float(s["clock_mhz"]) for s in samples if s["device"] == device and not is_null(s["clock_mhz"])]
    return sum(clocks) / len(clocks) if clocks else None
