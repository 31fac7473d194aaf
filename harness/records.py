"""The five tables, defined once: Arrow schemas, row validation and column documentation all derive from here.

Raw facts only. Whatever can be computed from a row is computed by `harness.metrics`, never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `unit` is empty for counts of things named by the column itself; a nullable null means "not reported"."""

    name: str
    type: pa.DataType
    doc: str
    unit: str = ""
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A named list of columns and the integer identities that each row must satisfy."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def schema(self) -> pa.Schema:
        """The Arrow schema, with unit and doc as field metadata and the schema version on the table."""
        fields = [pa.field(c.name, c.type, c.nullable, {"unit": c.unit, "doc": c.doc}) for c in self.columns]
        return pa.schema(fields, {"samerig_table": self.name, "samerig_schema": str(SCHEMA_VERSION)})

    def to_arrow(self, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
        """Rows as an Arrow table. Raises ValueError that names the column when a key is missing, unknown or wrongly null."""
        rows = list(rows)
        for row in rows:
            self._check_keys(row)
        return pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema())

    def _check_keys(self, row: Mapping[str, Any]) -> None:
        names = {c.name for c in self.columns}
        if odd := set(row) ^ names:
            raise ValueError(f"{self.name}: missing or unknown columns {sorted(odd)}")
        if empty := [c.name for c in self.columns if not c.nullable and row[c.name] is None]:
            raise ValueError(f"{self.name}: null in columns that are never null: {empty}")


_I64, _F64, _STR, _BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()

# Which measurement a row belongs to. A cell is block x arm x prompt set x concurrency; a serving is one launch of an arm.
_KEYS = (
    Column("run_id", _STR, "run that this row belongs to"),
    Column("serving_id", _STR, "launch of the engine that produced this row"),
    Column("block", _I64, "block number, from 0; every arm is booted once in each block"),
    Column("arm", _STR, "arm: what was allowed to differ"),
)
_CELL_KEYS = (
    *_KEYS,
    Column("cell_id", _STR, "content hash of resolved rig, arm, workload, code version, block, prompt set and concurrency"),
    Column("prompt_set", _STR, "pinned prompt set"),
    Column("content_class", _STR, "content class of the prompt set: code math chat prose structured repetition long"),
    Column("concurrency", _I64, "requests asked to be in flight at once"),
)

SERVINGS = Table(
    "servings",
    "One row per launch of an arm in a block.",
    (
        *_KEYS,
        Column("session_id", _STR, "process of the harness that launched it; a resumed run has several"),
        Column("method", _STR, "drafter family of the arm"),
        Column(
            "draft_budget", _I64, "drafted tokens offered per verification, anchor not counted; null for plain", "tokens", True
        ),
        Column("order_in_block", _I64, "position of the arm in its block's rotated order, from 0"),
        Column("config_hash", _STR, "sha256 of the resolved configuration"),
        Column("code_hash", _STR, "sha256 over the sources of harness and drafters"),
        Column("argv", pa.list_(_STR), "command that was run"),
        Column("env", pa.map_(_STR, _STR), "environment variables that the rig set"),
        Column("versions", pa.map_(_STR, _STR), "versions of engine, libraries, driver"),
        Column(
            "resolved", pa.map_(_STR, _STR), "the engine's own resolved configuration by canonical factor name, as JSON scalars"
        ),
        Column("host", pa.map_(_STR, _STR), "host and GPU facts read at launch, as JSON scalars"),
        Column("memory", pa.map_(_STR, _I64), "memory by kind; a kind that could not be read is absent", "bytes"),
        Column("memory_source", pa.map_(_STR, _STR), "where each kind of memory was read"),
        Column("launched_ns", _I64, "start of the launch, monotonic clock", "ns"),
        Column("launched_at", _STR, "start of the launch, UTC, ISO 8601"),
        Column("ended_ns", _I64, "end of the serving, monotonic clock; null while it runs or after a crash", "ns", True),
        Column("startup_s", _F64, "launch to ready", "s"),
        Column("load_s", _F64, "loading weights", "s", True),
        Column("graph_capture_s", _F64, "capturing CUDA graphs", "s", True),
        Column(
            "counters", pa.map_(_STR, _I64), "engine counters at the end less those at ready; absent keys were not reported"
        ),
        Column("energy_j", _F64, "GPU energy over the serving", "J", True),
        Column("throttle_reasons", pa.list_(_STR), "distinct throttle reasons seen by the sampler"),
        Column("foreign_processes", pa.list_(_STR), "other processes seen on the GPU or using much CPU during the serving"),
        Column("client_lag_p50_ms", _F64, "event-loop lag of the load client, median", "ms", True),
        Column("client_lag_p99_ms", _F64, "event-loop lag of the load client, 99th percentile", "ms", True),
        Column("flags", pa.list_(_STR), "observations to tell beside the numbers; they do not forbid a comparison"),
    ),
)

CELLS = Table(
    "cells",
    "One row per cell: what was seen around its window. One bad cell accuses no other.",
    (
        *_CELL_KEYS,
        Column("started_ns", _I64, "when its first measured request was sent, monotonic clock", "ns"),
        Column("ended_ns", _I64, "when its last measured request ended, monotonic clock", "ns"),
        Column("warmup_batches", _I64, "batches of warm-up just before it; 0 where an earlier cell had warmed this level up"),
        Column("warmed_up", _BOOL, "whether times had settled when the warm-up ended; null where there was none", "", True),
        Column("counters", pa.map_(_STR, _I64), "engine counters over the measured window; absent keys were not reported"),
        Column("client_lag_p99_ms", _F64, "event-loop lag of the load client in the window, 99th percentile", "ms", True),
        Column("busy_cores", _F64, "CPU cores at work for others than client and serving in the window, mean", "cores", True),
        Column("stolen_cores", _F64, "CPU cores that a hypervisor withheld in the window, mean", "cores", True),
        Column("invalid", pa.list_(_STR), "reasons for which this cell may not be compared; empty when it may"),
    ),
)

REQUESTS = Table(
    "requests",
    "One row per request, warm-up included.",
    (
        *_CELL_KEYS,
        Column("phase", _STR, "warmup or measured"),
        Column("request_id", _STR, "unique within the run"),
        Column("prompt_id", _STR, "prompt within its set; the pairing unit between arms"),
        Column("prompt_hash", _STR, "sha256 of the rendered prompt token ids"),
        Column("prompt_tokens", _I64, "rendered prompt length", "tokens"),
        Column("max_tokens", _I64, "limit that was asked", "tokens"),
        Column("ignore_eos", _BOOL, "true when the stop tokens were ignored (fixed length)"),
        Column("scheduled_ns", _I64, "when the load schedule wanted it sent (open loop), else when the engine was asked", "ns"),
        Column("sent_ns", _I64, "when it left, over a connection that stood where there is one, monotonic clock", "ns"),
        Column("ended_ns", _I64, "when its last chunk, or its error, arrived", "ns"),
        Column("chunk_ns", pa.list_(_I64), "arrival of every chunk, monotonic clock", "ns"),
        Column("chunk_tokens", pa.list_(_I64), "tokens in every chunk", "tokens"),
        Column("chunk_reasoning", pa.list_(_BOOL), "whether each chunk is reasoning"),
        Column("token_ids", pa.list_(pa.int32()), "delivered output tokens"),
        Column(
            "step_drafted",
            pa.list_(_I64),
            "drafted tokens of every decode step; null when the engine does not tell",
            "tokens",
            True,
        ),
        Column("step_accepted", pa.list_(_I64), "drafts accepted by the engine in every decode step", "tokens", True),
        Column("prefill_tokens", _I64, "P: tokens emitted by prefill", "tokens", True),
        Column("steps_with_draft", _I64, "S: decode steps that had at least one draft", "", True),
        Column("steps_without_draft", _I64, "Z: decode steps without drafts", "", True),
        Column("drafted", _I64, "D: drafted tokens", "tokens", True),
        Column("accepted", _I64, "A: accepted drafts that were delivered", "tokens", True),
        Column("accepted_by_engine", _I64, "A*: accepted drafts, those past a stop token or limit included", "tokens", True),
        Column("output_tokens", _I64, "O: delivered output tokens", "tokens"),
        Column(
            "ended_inside_run",
            _I64,
            "e: 1 if the request ended inside an accepted run, so that step's own token never came",
            "",
            True,
        ),
        Column("cached_tokens", _I64, "prompt tokens that the engine took from its prefix cache", "tokens", True),
        Column("finish", _STR, "stop or length; null when it failed", "", True),
        Column("error", _STR, "why it failed; null when it did not", "", True),
    ),
)

STEPS = Table(
    "steps",
    "One row per iteration of an engine that tells per-step truth.",
    (
        *_CELL_KEYS,
        Column("phase", _STR, "warmup or measured"),
        Column("started_ns", _I64, "start of the iteration, monotonic clock", "ns"),
        Column("kind", _STR, "prefill or decode"),
        Column("requests", _I64, "requests in the batch"),
        Column("rows", _I64, "rows that went through the target, padding included"),
        Column("context_tokens", _I64, "committed tokens over the batch before the iteration", "tokens"),
        Column("draft_ns", _I64, "time in the drafter, observing included", "ns"),
        Column("verify_ns", _I64, "time in the target", "ns"),
        Column("sample_ns", _I64, "time in sampling and acceptance", "ns"),
        Column("total_ns", _I64, "time of the whole iteration; what is left is bookkeeping", "ns"),
        Column("drafted", _I64, "drafted tokens over the batch", "tokens"),
        Column("accepted", _I64, "drafts accepted by the engine over the batch", "tokens"),
        Column("emitted", _I64, "tokens delivered over the batch", "tokens"),
    ),
)

SAMPLES = Table(
    "samples",
    "One row per period of the background sampler and device (or host).",
    (
        *_KEYS,
        Column("at_ns", _I64, "when, monotonic clock", "ns"),
        Column("device", _STR, "host, or gpu and its index"),
        Column(
            "memory_bytes",
            _I64,
            "resident memory of the serving's processes (host), or used on the device by them (GPU)",
            "bytes",
            True,
        ),
        Column("device_memory_bytes", _I64, "memory used on the whole device by anyone", "bytes", True),
        Column("utilization", _F64, "busy share of the device", "0-1", True),
        Column("power_w", _F64, "board power", "W", True),
        Column("clock_mhz", _F64, "SM clock (GPU) or mean core clock (host)", "MHz", True),
        Column("temperature_c", _F64, "temperature", "degC", True),
        Column("load_1m", _F64, "load average over one minute (host)", "", True),
        Column("steal", _F64, "share of CPU time stolen by the hypervisor since the last sample (host)", "0-1", True),
        Column("throttle", _STR, "throttle reasons, comma separated (GPU)", "", True),
    ),
)

TABLES = (SERVINGS, CELLS, REQUESTS, STEPS, SAMPLES)
