"""Columns of results/published/claims.parquet."""

from __future__ import annotations

import pyarrow as pa

from harness.records import Column, Table

_I64, _F64, _STR = pa.int64(), pa.float64(), pa.string()


def _number(name: str, doc: str, unit: str = "") -> tuple[Column, Column, Column]:
    """A printed number: its low and high end, equal for a single one, and the cell as printed."""
    ends = (f"{name}_low", f"{name}_high")
    low, high = (Column(end, _F64, f"{doc}; null when the cell is empty or holds no single number", unit, True) for end in ends)
    return low, high, Column(f"{name}_printed", _STR, f"{name} as printed")


CLAIMS = Table(
    "claims",
    "One row per published measurement. A null was not stated, or could not be read; what was printed is always there too.",
    (
        Column("claim_id", _STR, "`seed:N` or `claims:N`: row N, from 1, of seed_claims.csv or claims.csv"),
        Column("source", _STR, "where it was published"),
        Column("date", _STR, "when, as far as known; `~` is approximate", "", True),
        Column("hardware", _STR, "canonical name of the GPU or machine", "", True),
        Column("hardware_printed", _STR, "hardware as printed"),
        Column("gpus", _I64, "how many of them", "", True),
        Column("engine", _STR, "canonical name of the engine, as in rigs/engine", "", True),
        Column("engine_printed", _STR, "engine as printed"),
        Column("engine_version", _STR, "version, commit or pull request", "", True),
        Column("target", _STR, "the model that was served, without its owner", "", True),
        Column("target_model_printed", _STR, "target as printed"),
        Column("precision", _STR, "canonical precision or quantisation of the target", "", True),
        Column("precision_printed", _STR, "precision as printed"),
        Column("kv_dtype", _STR, "precision of the KV cache", "", True),
        Column("context", _STR, "context or output limit, as printed", "", True),
        Column("method", _STR, "canonical drafter family, as in rigs/arm; plain is decoding without a drafter", "", True),
        Column("draft_method_printed", _STR, "method as printed"),
        Column("drafter", _STR, "checkpoint of the drafter", "", True),
        Column("budget", _I64, "drafts per verification, the anchor not counted; 0 for plain", "tokens", True),
        Column("draft_budget_printed", _STR, "budget as printed"),
        Column("temperature", _F64, "stated temperature; 0 is greedy", "", True),
        Column("task", _STR, "canonical task; `several` for averages over tasks", "", True),
        Column("task_printed", _STR, "task as printed"),
        Column("concurrency", _I64, "requests at once", "", True),
        *_number("tok_s", "output tokens per second", "tok/s"),
        *_number("speedup", "speedup over `over`, or over plain", "ratio"),
        Column("over", _STR, "method that the speedup is relative to; null is plain", "", True),
        Column("gain", _F64, "a printed gain as a share: 0.64 for +64 %", "share", True),
        *_number("acceptance_length", "tokens per verification, bonus included (flag no_bonus: not)", "tokens/step"),
        *_number("acceptance_rate", "share of drafted tokens that were accepted", "share"),
        Column("baseline_tok_s", _F64, "the rate that the speedup is over", "tok/s", True),
        Column(
            "baseline_from",
            _STR,
            "where that rate stands: notes, the speedup's cell, or a claim_id",
            "",
            True,
        ),
        Column("held_fixed", _STR, "what the source held fixed, in words (seed rows)", "", True),
        Column("moved", _STR, "what moved, in words (seed rows)", "", True),
        Column("notes", _STR, "what a reader noted; read it before using the row", "", True),
        Column("flags", pa.list_(_STR), "reasons to look twice; harness/claims/flags.py gives their rules"),
    ),
)
