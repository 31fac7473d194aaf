"""What happens once the cells of a serving are measured and its engine is still up: nothing here is timed against anything.

A sweep of widths in plain's serving; some requests read again by teacher forcing, with the drafts that the arm's drafter gives
on them; requests that differ from plain's of the same block read again by whichever of the two serves last; answers checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

from harness.asked import Prompts
from harness.baselines import plain_of
from harness.config import Run
from harness.gates.identity import first_difference, place
from harness.grading import Decoder, Grader, grade_rows
from harness.inside import OpenEngine
from harness.metrics import Row, integers, prompt_key, rows_of, succeeded
from harness.records_after import GRADES, REPLAYS, REQUEST_KEYS, WIDTHS
from harness.store import Store, read_tables
from harness.workloads import set_label

WIDTH_RANGE = range(1, 18)
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Looked:
    """A serving whose cells are measured: the run, its keys (run_id, serving_id, block, arm), and where its rows are."""

    run: Run
    keys: Mapping[str, Any]
    prompts: Prompts
    store: Store
    grader: Grader | None

    @property
    def plain(self) -> str:
        return plain_of(self.run)


def grader_for(run: Run, prompts: Prompts) -> Grader | None:
    """Who checks answers; null when the protocol does not ask for it or the prompts cannot turn tokens into text."""
    if run.protocol.check_answers == "none" or not isinstance(prompts, Decoder):
        return None
    return Grader(prompts, run_code=run.protocol.check_answers == "all")


async def after_cells(serving: Looked, engine: object) -> None:
    """Look, and write what was seen. Raises EngineError when the engine ends meanwhile; the cells are on disk by then."""
    block = _block(serving)
    mine = [row for row in block if row["serving_id"] == serving.keys["serving_id"]]
    tables: dict[str, Rows] = {WIDTHS.name: [], REPLAYS.name: [], GRADES.name: []}
    if serving.grader is not None:
        tables[GRADES.name] = list(grade_rows(serving.keys, serving.grader.grades(mine)))
    if isinstance(engine, OpenEngine):
        texts = _Texts(serving)
        if serving.keys["arm"] == serving.plain and serving.run.protocol.width_rounds:
            tables[WIDTHS.name] = [row async for row in _sweep(serving, engine, mine, texts)]
        wanted = [*sample(serving.run, mine), *differing(serving.run, serving.plain, str(serving.keys["arm"]), block)]
        for row in {str(row["request_id"]): row for row in reversed(wanted)}.values():
            tables[REPLAYS.name].append(await _replay(serving, engine, row, texts))
    if any(tables.values()):
        serving.store.write_after(str(serving.keys["serving_id"]), tables)


def _block(serving: Looked) -> list[Row]:
    """Measured requests of this block that succeeded, whoever served them."""
    table = read_tables(serving.store.folder).requests
    return succeeded(rows_of(table[table["block"] == serving.keys["block"]]))


class _Texts:
    """Prompt token ids of the run's requests, by prompt set and prompt."""

    def __init__(self, serving: Looked) -> None:
        run = serving.run
        self._ids = {
            (set_label(prompt_set), asked.prompt_id): asked.prompt_ids
            for prompt_set in run.workload.sets
            for asked in serving.prompts.measured(prompt_set, max(run.concurrency))
        }

    def prompt(self, row: Row) -> tuple[int, ...]:
        return self._ids[prompt_key(row)]


async def _sweep(serving: Looked, engine: OpenEngine, mine: Sequence[Row], texts: _Texts) -> AsyncIterator[dict[str, Any]]:
    """Rows of the width sweep at every concurrency that this serving measured, over what it had served there."""
    for level in sorted({int(row["concurrency"]) for row in mine}):
        served = [row for row in mine if int(row["concurrency"]) == level]
        whole = [[*texts.prompt(row), *integers(row["token_ids"])] for row in served]
        long_enough = [text for text in whole if len(text) > max(WIDTH_RANGE)]
        if long_enough:
            chosen = list(islice(cycle(long_enough[:: max(1, len(long_enough) // level)]), level))
            for time in await engine.widths(chosen, WIDTH_RANGE, serving.run.protocol.width_rounds):
                yield {**serving.keys, **asdict(time)}


def sample(run: Run, mine: Sequence[Row]) -> list[Row]:
    """The first `protocol.replays_per_set` requests of every prompt set at this serving's lowest concurrency, first asked."""
    lowest = min((int(row["concurrency"]) for row in mine), default=0)
    by_set: dict[str, list[Row]] = {}
    for row in mine:
        if int(row["concurrency"]) == lowest:
            by_set.setdefault(str(row["prompt_set"]), []).append(row)
    return [row for rows in by_set.values() for row in rows[: run.protocol.replays_per_set]]


def differing(run: Run, plain: str, arm: str, block: Sequence[Row]) -> list[Row]:
    """Requests of other arms than plain that differ from plain's in this block, as far as `arm` is one of the two.

    At most `protocol.replays_per_set` per arm, prompt set and concurrency, and none where decoding is sampled.
    """
    if run.sampler.temperature > 0:
        return []
    theirs = {place(row): integers(row["token_ids"]) for row in block if row["arm"] == plain}
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in block:
        if row["arm"] == plain or arm not in (plain, row["arm"]) or place(row) not in theirs:
            continue
        if first_difference(integers(row["token_ids"]), theirs[place(row)]) is not None:
            found.setdefault((row["arm"], *place(row)[:2]), []).append(row)
    return [row for rows in found.values() for row in rows[: run.protocol.replays_per_set]]


async def _replay(serving: Looked, engine: OpenEngine, row: Row, texts: _Texts) -> dict[str, Any]:
    """A request read again. Its own drafter is asked only in its own arm: another's drafts would be nobody's."""
    arm = serving.run.arms.get(str(row["arm"]))
    draft = arm is not None and arm.drafter is not None and row["arm"] == serving.keys["arm"]
    found = await engine.replay(texts.prompt(row), integers(row["token_ids"]), int(row["max_tokens"]), draft)
    return {**{name: row[name] for name in REQUEST_KEYS}, "replayed_by": serving.keys["serving_id"], **asdict(found)}
