"""After the cells: what is swept, read again and checked, by whom, and that nobody is asked for more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_bench import FixedPrompts, scripted_run
from synthetic import request

from harness.after import Looked, after_cells, differing, grader_for, sample
from harness.config import Run
from harness.gates.acceptance import Recomputed, recomputed
from harness.inside import Replay, WidthTime
from harness.metrics import Missing, rows_of
from harness.records import CELLS
from harness.store import Store, open_store, read_tables

OPEN = {"width_rounds": 2, "replays_per_set": 1}


class Opened:
    """An engine that answers at once and remembers what it was asked."""

    def __init__(self) -> None:
        self.swept: list[tuple[int, int]] = []
        self.replayed: list[tuple[tuple[int, ...], bool]] = []

    async def widths(self, texts: Sequence[Sequence[int]], widths: Sequence[int], rounds: int) -> list[WidthTime]:
        self.swept.append((len(texts), rounds))
        return [WidthTime(len(texts), w, 10 * len(texts), r, w * 1000) for r in range(rounds) for w in widths]

    async def replay(self, prompt_ids: Sequence[int], token_ids: Sequence[int], max_tokens: int, draft: bool) -> Replay:
        self.replayed.append((tuple(token_ids), draft))
        counts = (3, 1, 9, 4) if draft else (None, None, None, None)
        return Replay((0.0,) * len(token_ids), (1.0,) * len(token_ids), *counts)


def row(
    run: Run, arm: str, tokens: Sequence[int], name: str = "alpha", prompt: int = 0, concurrency: int = 1
) -> dict[str, Any]:
    return request(
        [(100.0, len(tokens))],
        arm=arm,
        serving_id=f"b0-{arm}",
        cell_id=f"{arm}-{name}-{concurrency}",
        prompt_set=name,
        content_class="chat",
        prompt_id=f"{name}-{prompt}",
        concurrency=concurrency,
        token_ids=list(tokens),
        request_id=f"{arm}-{name}-{concurrency}-{prompt}",
        max_tokens=40,
    )


def stored(store: Store, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as complete cells of the store."""
    for cell in {r["cell_id"] for r in rows}:
        mine = [r for r in rows if r["cell_id"] == cell]
        keys = {c.name: mine[0].get(c.name) for c in CELLS.columns}
        told = {**keys, "started_ns": 0, "warmup_batches": 0, "warmed_up": None, "counters": {}, "invalid": []}
        store.write_cell(cell, {"cells": [told], "requests": mine, "steps": [], "samples": []})


@pytest.fixture
def store(tmp_path: Path):
    store = open_store(tmp_path, "rig", "name: rig\n", "c" * 64, "code", False)
    yield store
    store.close()


def looked(run: Run, arm: str, store: Store) -> Looked:
    keys = {"run_id": "r", "serving_id": f"b0-{arm}", "block": 0, "arm": arm}
    return Looked(run, keys, FixedPrompts(run), store, None)


LONG = list(range(20))


def test_plain_sweeps_widths_at_every_level_and_a_drafting_arm_none(store: Store):
    run = scripted_run(protocol=OPEN)
    stored(store, [row(run, arm, LONG, concurrency=c) for arm in ("plain", "ngram") for c in (1, 2)])
    plain, ngram = Opened(), Opened()
    asyncio.run(after_cells(looked(run, "plain", store), plain))
    asyncio.run(after_cells(looked(run, "ngram", store), ngram))
    assert plain.swept == [(1, 2), (2, 2)]
    assert ngram.swept == []
    widths = rows_of(read_tables(store.folder).widths)
    assert {(w["requests"], w["width"]) for w in widths} == {(c, w) for c in (1, 2) for w in range(1, 18)}
    assert {w["arm"] for w in widths} == {"plain"}


def test_a_sample_is_read_again_with_the_arms_own_drafter_and_none_for_plain(store: Store):
    run = scripted_run(protocol=OPEN)
    rows = [row(run, arm, LONG, name, p) for arm in ("plain", "ngram") for name in ("alpha", "beta") for p in (0, 1)]
    stored(store, rows)
    plain, ngram = Opened(), Opened()
    asyncio.run(after_cells(looked(run, "plain", store), plain))
    asyncio.run(after_cells(looked(run, "ngram", store), ngram))
    assert [draft for _, draft in plain.replayed] == [False, False]
    assert [draft for _, draft in ngram.replayed] == [True, True]
    replays = rows_of(read_tables(store.folder).replays, arm="ngram")
    assert {r["prompt_id"] for r in replays} == {"alpha-0", "beta-0"}
    assert {r["drafted"] for r in replays} == {9}


def test_a_text_that_differs_from_plains_is_read_again_by_whoever_serves_last(store: Store):
    run = scripted_run(protocol=OPEN)
    other = [*LONG[:10], 99, *LONG[11:]]
    stored(store, [row(run, "ngram", other, prompt=2), row(run, "ngram", LONG, prompt=1)])
    first = Opened()
    asyncio.run(after_cells(looked(run, "ngram", store), first))
    assert (tuple(other), True) in first.replayed  # the sample: the first one asked
    stored(store, [row(run, "plain", LONG, prompt=2), row(run, "plain", LONG, prompt=1)])
    last = Opened()
    asyncio.run(after_cells(looked(run, "plain", store), last))
    assert (tuple(other), False) in last.replayed
    replays = rows_of(read_tables(store.folder).replays, arm="ngram")
    assert {r["replayed_by"] for r in replays} == {"b0-ngram", "b0-plain"}


def test_differences_between_two_other_arms_concern_nobody_and_sampled_texts_have_none():
    run = scripted_run(protocol=OPEN)
    block = [row(run, "plain", LONG), row(run, "ngram", [*LONG[:-1], 5])]
    assert [r["arm"] for r in differing(run, "plain", "plain", block)] == ["ngram"]
    assert differing(run, "plain", "mtp", block) == []
    sampled = scripted_run(protocol=OPEN, sampler={"temperature": 1, "top_p": 1, "top_k": 0, "seed": 1})
    assert differing(sampled, "plain", "plain", block) == []


def test_a_protocol_that_asks_for_nothing_and_an_engine_that_is_closed_leave_nothing(store: Store):
    run = scripted_run()
    stored(store, [row(run, "plain", LONG)])
    engine = Opened()
    asyncio.run(after_cells(looked(run, "plain", store), engine))
    asyncio.run(after_cells(looked(scripted_run(protocol=OPEN), "plain", store), object()))
    assert (engine.swept, engine.replayed) == ([], [])
    assert not list((store.folder / "after").iterdir())
    assert sample(run, [row(run, "plain", LONG)]) == []
    assert grader_for(run, FixedPrompts(run)) is None


def test_recomputed_acceptance_agrees_within_two_hundredths_or_says_that_it_does_not():
    served = [
        request(prefill_tokens=1, steps_with_draft=10, steps_without_draft=0, drafted=40, accepted=a, request_id=f"q{i}")
        for i, a in enumerate((12, 8))
    ]

    def again(*accepted: int) -> list[dict[str, Any]]:
        return [
            {"request_id": f"q{i}", "steps_with_draft": 10, "steps_without_draft": 0, "drafted": 40, "accepted": a}
            for i, a in enumerate(accepted)
        ]

    same, off = recomputed(served, again(12, 8), 4), recomputed(served, again(12, 10), 4)
    assert isinstance(same, Recomputed)
    assert isinstance(off, Recomputed)
    assert same.agree is True
    assert same.lengths == (2.0, 2.0)
    assert off.agree is False
    assert recomputed(served, again(12, 8), None) == Missing("plain_arm")
    assert recomputed(served, [{**r, "steps_with_draft": None} for r in again(12, 8)], 4) == Missing("not_recomputed")
