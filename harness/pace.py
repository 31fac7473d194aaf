"""What an earlier run took, part by part: launches, warm-up, reading prompts, decoding, and the looks behind the cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.store import Tables

Rates = Mapping[tuple[bool, int], float]  # by whether the arm drafts, and concurrency


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of an earlier run's parts.

    `prompt_seconds` per prompt token read; `token_seconds` of decoding per token delivered; `prompt_tokens` mean of a prompt,
    `answer_tokens` mean of an answer, sent with a limit of `limit_tokens` in the mean; `boot_seconds` from a launch to its
    first request; `after_seconds` behind the cells of a serving; what plain's width sweep adds, per request of every level
    summed: `width_seconds`, and `round_seconds` for each of its rounds. `methods` are those of the arms.
    """

    run_id: str
    methods: frozenset[str]
    prompt_seconds: float
    token_seconds: Rates
    prompt_tokens: float
    answer_tokens: float
    limit_tokens: float
    boot_seconds: float
    after_seconds: float
    width_seconds: float
    round_seconds: float
    warmup_batches: float


def pace_of(run_id: str, tables: Tables) -> Pace | None:
    """The pace of one run, or null when it has no measured request that succeeded."""
    requests = tables.requests[tables.requests["error"].isna()]
    measured = requests[requests["phase"] == "measured"]
    if measured.empty:
        return None
    plain = set(tables.servings.loc[tables.servings["method"] == "plain", "serving_id"])
    per_token = _prompt_seconds(measured, tables.steps)
    after, width, each = _after(tables, measured, plain)
    return Pace(
        run_id,
        frozenset(map(str, tables.servings["method"])),
        per_token,
        _token_seconds(measured, per_token, plain),
        float(measured["prompt_tokens"].mean()),
        float(measured["output_tokens"].mean()),
        float(measured["max_tokens"].mean()),
        _boot_seconds(tables.servings, requests),
        after,
        width,
        each,
        _batches(requests),
    )


def _prompt_seconds(measured: pd.DataFrame, steps: pd.DataFrame) -> float:
    """From the engine's own prefill steps; else from the time until the first chunk at the lowest level, where each request
    waits for those beside it."""
    if not steps.empty:
        prefill = steps[(steps["kind"] == "prefill") & (steps["phase"] == "measured")]
        return float(prefill["total_ns"].sum() / 1e9 / measured["prompt_tokens"].sum())
    level = measured["concurrency"].min()
    lowest = measured[measured["concurrency"] == level]
    waited = sum(chunks[0] - sent for chunks, sent in zip(lowest["chunk_ns"], lowest["sent_ns"], strict=True) if len(chunks))
    return float(waited / 1e9 / level / lowest["prompt_tokens"].sum())


def _token_seconds(measured: pd.DataFrame, prompt_seconds: float, plain: set[Any]) -> dict[tuple[bool, int], float]:
    """Wall time of cells without what their prompts took, per token delivered."""
    cells = measured.assign(drafts=~measured["serving_id"].isin(plain)).groupby("cell_id")
    told = cells.agg(
        drafts=("drafts", "first"),
        level=("concurrency", "first"),
        sent=("sent_ns", "min"),
        ended=("ended_ns", "max"),
        read=("prompt_tokens", "sum"),
        given=("output_tokens", "sum"),
    )
    told["seconds"] = (told["ended"] - told["sent"]) / 1e9 - told["read"] * prompt_seconds
    sums = told.groupby(["drafts", "level"])[["seconds", "given"]].sum()
    return {
        (bool(drafts), int(level)): max(0.0, float(row["seconds"] / row["given"]))
        for (drafts, level), row in zip(sums.index, sums.to_dict("records"), strict=True)
    }


def _boot_seconds(servings: pd.DataFrame, requests: pd.DataFrame) -> float:
    first = requests.groupby("serving_id")["sent_ns"].min()
    launched = servings.set_index("serving_id")["launched_ns"]
    return float(((first - launched.reindex(first.index)) / 1e9).mean())


def _after(tables: Tables, measured: pd.DataFrame, plain: set[Any]) -> tuple[float, float, float]:
    """Mean seconds behind the cells where no width is swept; what plain's sweep adds per request, fixed and per round."""
    last = measured.groupby("serving_id")["ended_ns"].max()
    ended = tables.servings.set_index("serving_id")["ended_ns"].reindex(last.index)
    behind = ((ended - last) / 1e9).dropna()
    others, plains = behind[~behind.index.isin(plain)], behind[behind.index.isin(plain)]
    least = float(others.mean()) if len(others) else 0.0
    requests = sum(sorted(set(measured["concurrency"].astype(int))))
    if plains.empty:
        return least, 0.0, 0.0
    if tables.widths.empty:
        return float(behind.mean()), 0.0, 0.0
    swept = tables.widths[tables.widths["serving_id"].isin(plains.index)]
    rounds = swept["round"].nunique() or 1
    timed = float(swept["verify_ns"].sum() / 1e9 / len(plains))
    fixed = max(0.0, float(plains.mean()) - least - timed)
    return least, fixed / requests, timed / rounds / requests


def _batches(requests: pd.DataFrame) -> float:
    """Mean number of warm-up batches of a level; a batch is told by the second last part of its request ids. 0 without any."""
    warmup = requests[requests["phase"] == "warmup"]
    if warmup.empty:
        return 0.0
    batch = warmup["request_id"].str.rsplit("-", n=1).str[0]
    return float(batch.groupby([warmup["serving_id"], warmup["cell_id"]]).nunique().mean())
