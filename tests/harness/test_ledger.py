"""The acceptance ledger: identities on random streams, the traps of counting past a stop token, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import Sampler
from harness.engines.base import Chunk, Request
from harness.ledger import Ledger, ledger, request_row
from harness.load import Result
from harness.records import REQUESTS

GREEDY = Sampler(temperature=0, top_p=1, top_k=0, seed=0)


def chunk(tokens: int, drafted: int | None = None, accepted: int | None = None, finish: str | None = None) -> Chunk:
    return Chunk(0, tuple(range(tokens)), drafted, accepted, finish)


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, list[Chunk], int]:
    """A budget, chunks of an answer that was cut at a random place, and the accepted tokens that were lost by the cut."""
    budget = draw(st.integers(1, 16))
    drafted = draw(st.lists(st.integers(0, budget), max_size=20))
    steps = [(d, draw(st.integers(0, d))) for d in drafted]
    emitted = 1 + sum(a + 1 for _, a in steps)
    stop = draw(st.integers(1, emitted))
    chunks, sent = [chunk(1)], 1
    for d, a in steps:
        if sent >= stop:
            break
        tokens = min(a + 1, stop - sent)
        chunks.append(chunk(tokens, d, a))
        sent += tokens
    lost = max(0, (chunks[-1].accepted or 0) - len(chunks[-1].token_ids)) if len(chunks) > 1 else 0
    return budget, chunks, lost


@given(answers())
def test_the_identities_hold_on_every_answer_wherever_it_stops(answer: tuple[int, list[Chunk], int]) -> None:
    budget, chunks, lost = answer
    found = ledger("r", chunks, budget, tells_steps=True)
    p, s, z, a, e = (
        found.prefill_tokens,
        found.steps_with_draft,
        found.steps_without_draft,
        found.accepted,
        found.ended_inside_run,
    )
    assert None not in (p, s, z, a, e)
    assert found.output_tokens == p + s + z + a - e  # not null, see above
    assert found.accepted_by_engine - a == lost  # not null either
    assert a <= (s or 0) * budget
    assert e == (len(chunks) > 1 and len(chunks[-1].token_ids) <= (chunks[-1].accepted or 0))


def test_drafts_accepted_past_a_stop_token_are_not_delivered() -> None:
    found = ledger("r", [chunk(1), chunk(3, drafted=5, accepted=5, finish="stop")], 5, tells_steps=True)
    assert (found.accepted, found.accepted_by_engine, found.output_tokens, found.ended_inside_run) == (3, 5, 4, 1)


def test_steps_without_a_draft_are_counted_apart() -> None:
    chunks = [chunk(1), *[chunk(4, 3, 3)] * 10, *[chunk(1, 0, 0)] * 30]
    found = ledger("r", chunks, 3, tells_steps=True)
    assert (found.steps_with_draft, found.steps_without_draft, found.accepted, found.output_tokens) == (10, 30, 30, 71)


def test_prefill_tokens_are_no_product_of_a_step() -> None:
    found = ledger("r", [chunk(1), chunk(4, 3, 3), chunk(4, 3, 3)], 3, tells_steps=True)
    assert (found.prefill_tokens, found.steps_with_draft, found.accepted) == (1, 2, 6)


def test_an_engine_that_tells_no_steps_leaves_nulls_and_never_zeros() -> None:
    found = ledger("r", [chunk(1), chunk(3), chunk(3)], 3, tells_steps=False)
    assert found == Ledger(None, None, None, None, None, None, 7, None)


def test_an_answer_of_one_token_from_an_engine_that_tells_has_zero_steps() -> None:
    found = ledger("r", [chunk(1, finish="length")], 3, tells_steps=True)
    assert (found.prefill_tokens, found.steps_with_draft, found.ended_inside_run, found.output_tokens) == (1, 0, 0, 1)


def test_a_closing_chunk_without_tokens_is_no_step() -> None:
    found = ledger("r", [chunk(1), chunk(2, 3, 1), chunk(0, finish="stop")], 3, tells_steps=True)
    assert (found.steps_with_draft, found.steps_without_draft, found.output_tokens) == (1, 0, 3)


@pytest.mark.parametrize(
    ("chunks", "budget", "message"),
    [
        ([chunk(1), chunk(5, 4, 4)], 3, "budget 3"),
        ([chunk(1), chunk(4, 2, 3)], 3, "accepted 3, drafted 2"),
        ([chunk(1), chunk(8, 3, 3)], 3, "delivered 8 tokens"),
        ([chunk(1), chunk(2, 3, 3), chunk(1, 3, 0)], 3, "fewer only at the end"),
        ([chunk(1), chunk(1, 3, 0), chunk(2)], 3, "all steps or none"),
        ([chunk(1), chunk(2, 1, 1)], None, "budget 0"),
    ],
)
def test_a_stream_that_contradicts_itself_is_refused_by_request_name(
    chunks: list[Chunk], budget: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=f"request r7: .*{message}"):
        ledger("r7", chunks, budget, tells_steps=True)


CELL = {"run_id": "r", "serving_id": "s", "block": 0, "arm": "plain", "cell_id": "c", "prompt_set": "x", "concurrency": 1}
PROMPT = {"content_class": "chat", "prompt_id": "p", "prompt_hash": "h"}


def result(chunks: list[Chunk], error: str | None = None) -> Result:
    return Result(Request("r", (1, 2), 8, (), False, GREEDY), 5, 6, 9, tuple(chunks), error)


def test_a_row_fits_the_table_and_keeps_every_raw_fact() -> None:
    chunks = [chunk(1), chunk(3, 3, 2), chunk(2, 3, 3, finish="length")]
    row = request_row({**CELL, "phase": "measured"}, result(chunks), PROMPT, ledger("r", chunks, 3, True))
    REQUESTS.to_arrow([row])
    assert (row["chunk_tokens"], row["step_drafted"], row["step_accepted"]) == ([1, 3, 2], [3, 3], [2, 3])
    assert (row["output_tokens"], row["ended_inside_run"], row["finish"], row["prompt_tokens"]) == (6, 1, "length", 2)


def test_a_refused_ledger_keeps_the_raw_steps_and_no_totals() -> None:
    row = request_row({**CELL, "phase": "measured"}, result([chunk(1), chunk(9, 3, 3, finish="stop")]), PROMPT, None)
    REQUESTS.to_arrow([row])
    assert (row["step_accepted"], row["accepted"], row["output_tokens"]) == ([3], None, 10)


def test_a_failed_request_without_chunks_is_a_row_without_a_finish() -> None:
    row = request_row({**CELL, "phase": "measured"}, result([], "timeout"), PROMPT, ledger("r", [], None, False))
    REQUESTS.to_arrow([row])
    assert (row["error"], row["finish"], row["output_tokens"], row["step_drafted"]) == ("timeout", None, 0, None)
