"""What a foreign engine must show before a window counts, and what says that a window was not ours alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.asked import Asked
from harness.compose import compose_run
from harness.config import PromptSet
from harness.engines.base import Chunk, Counters, EngineError, Request, Scalar, Told
from harness.ledger import ledger, request_row
from harness.liveness import liveness_problems, probes
from harness.load import Result
from harness.schedule import Cell
from harness.validity import cache_problems, foreign_traffic
from harness.windows import Windows
from harness.workloads import check_workload, set_label

RUN = compose_run("cpu_smollm2").run
PLAIN, NGRAM = RUN.arms["plain"], RUN.arms["ngram"]


class Warm:
    """Two warm-up prompts."""

    stop_ids = (2,)

    def measured(self, prompt_set: PromptSet, concurrency: int) -> Sequence[Asked]:
        raise AssertionError("a probe asks nothing that is measured")

    def warmup(self, prompt_set: PromptSet, count: int) -> Sequence[Asked]:
        return [Asked(f"w{i}", "chat", tuple(range(10 + i, 50 + i)), "hash") for i in range(count)]


class Served:
    """An engine that drafts `drafted` and accepts `accepted` in its one step, told per step, in counters, or not at all."""

    def __init__(self, drafted: int | None, accepted: int, told: str = "steps", fails: bool = False) -> None:
        self.drafted, self.accepted, self.told, self.fails = drafted, accepted, told, fails
        self.asked: list[Request] = []
        self.flushed = 0

    async def flush(self) -> None:
        self.flushed += 1

    async def generate(self, request: Request) -> AsyncIterator[Chunk]:
        self.asked.append(request)
        if self.fails:
            raise EngineError("no such model")
        yield Chunk(1, (5,))
        steps = (self.drafted, self.accepted) if self.told == "steps" else (None, None)
        yield Chunk(2, (6,) * (self.accepted + 1), *steps, finish="length")

    async def counters(self) -> Counters | None:
        if self.told != "counters" or self.drafted is None:
            return None
        return Counters(drafted=self.drafted * len(self.asked), accepted=self.accepted * len(self.asked))


def seen(engine: Served, arm: Any = NGRAM, resolved: Mapping[str, Scalar] | None = None) -> list[str]:
    return asyncio.run(liveness_problems(engine, RUN, arm, Warm(), resolved or {}))


@pytest.mark.parametrize("told", ["steps", "counters"])
def test_a_drafter_at_work_passes_and_a_dead_one_does_not(told: str) -> None:
    assert seen(Served(4, 2, told)) == []
    assert seen(Served(0, 0, told)) == ["liveness: ngram drafted nothing on the probe; its drafter is not at work"]
    assert seen(Served(4, 0, told)) == ["liveness: ngram drafted 12 tokens on the probe and not one was accepted"]
    assert seen(Served(0, 0, told), PLAIN) == []
    if told == "counters":
        assert seen(Served(4, 2, told), PLAIN) == ["liveness: plain drafted 12 tokens on the probe"]


def test_what_cannot_be_read_is_no_problem() -> None:
    assert seen(Served(None, 2, "nothing")) == []
    assert seen(Served(4, 2), resolved={"method": None, "draft_budget": None}) == []


def test_a_failed_probe_says_why() -> None:
    assert seen(Served(4, 2, fails=True))[0] == "liveness: probe probe-0 failed: EngineError: no such model"


def test_the_resolved_method_and_budget_are_those_asked_for() -> None:
    assert seen(Served(4, 2), resolved={"method": "ngram", "draft_budget": 4, "synthetic_acceptance": False}) == []
    assert seen(Served(0, 0), PLAIN, {"method": "plain", "draft_budget": None}) == []
    assert "resolved method 'eagle3', the arm asks for 'ngram'" in seen(Served(4, 2), resolved={"method": "eagle3"})[0]
    assert "resolved method 'ngram', the arm asks for 'plain'" in seen(Served(0, 0), PLAIN, {"method": "ngram"})[0]
    assert "resolved a budget of 3, the arm asks for 4" in seen(Served(4, 2), resolved={"draft_budget": 3})[0]
    assert "simulates acceptance (2.5)" in seen(Served(4, 2), resolved={"synthetic_acceptance": 2.5})[0]


def test_probes_are_warm_up_prompts_and_one_that_repeats_itself() -> None:
    asked = probes(RUN, Warm())
    assert [len(request.prompt_ids) for request in asked] == [40, 40, 96]
    assert asked[2].prompt_ids[:24] * 4 == asked[2].prompt_ids
    assert all(request.sampler.temperature == 0 and request.ignore_eos for request in asked)


def row(cached: int | None = None, prompt: int = 10) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "cached_tokens": cached}


def test_requests_or_prompt_tokens_beyond_ours_are_foreign_traffic() -> None:
    assert foreign_traffic([row(), row()], {"requests": 2, "prefill_tokens": 15, "cached_tokens": 5}) == []
    assert foreign_traffic([row(), row()], {}) == []
    assert "finished 3 requests, 2 were ours" in foreign_traffic([row(), row()], {"requests": 3})[0]
    assert "read 21 prompt tokens, ours were 20" in foreign_traffic([row(), row()], {"prefill_tokens": 21})[0]


def test_cached_tokens_with_the_cache_off_spoil_a_cell() -> None:
    assert cache_problems([row(0), row(None)], {}, False, None) == []
    assert "4 prompt tokens came from it" in cache_problems([row(4)], {}, False, None)[0]
    assert "7 prompt tokens came from it" in cache_problems([row(None)], {"cached_tokens": 7}, False, None)[0]


def test_a_cold_window_may_share_a_template_and_no_more() -> None:
    assert cache_problems([row(32, 1000), row(48, 1000)], {}, True, None) == []
    assert "980 of 2000 prompt tokens came from it" in cache_problems([row(0, 1000), row(980, 1000)], {}, True, None)[0]


def test_a_warm_window_is_confirmed_by_the_engines_own_count() -> None:
    assert cache_problems([row(8000, 8192), row(7900, 8192)], {}, True, 8000) == []
    assert "1 of 2 prompts had under 7872 of 8000" in cache_problems([row(8000, 8192), row(64, 8192)], {}, True, 8000)[0]
    assert "does not tell" in cache_problems([row(None, 8192)], {"cached_tokens": 8000}, True, 8000)[0]


def test_the_cache_is_emptied_and_filled_before_a_warm_window() -> None:
    """Each prompt's beginning is sent once, for one token, after the flush; a cold set only flushes."""
    engine = Served(4, 0)
    windows = Windows(RUN, NGRAM, engine, Warm(), {}, 0, lambda: True)
    asked = Warm().warmup(RUN.workload.sets[0], 2)
    for cached in (None, 16):
        cell = Cell("c" * 32, PromptSet(set="chat", max_tokens=8, cached=cached), 1)
        asyncio.run(windows.prepare(cell, asked))
    assert engine.flushed == 2
    assert [(r.prompt_ids, r.max_tokens, r.ignore_eos) for r in engine.asked] == [(a.prompt_ids[:16], 1, True) for a in asked]
    with pytest.raises(EngineError, match="a request that should fill it failed"):
        asyncio.run(Windows(RUN, NGRAM, Served(4, 0, fails=True), Warm(), {}, 0, lambda: True).prepare(cell, asked))


def test_a_warm_set_needs_the_prefix_cache_and_says_so_in_its_label() -> None:
    warm = PromptSet(set="chat", max_tokens=8, cached=16)
    assert set_label(warm) == "chat+16"
    run = RUN.model_copy(update={"workload": RUN.workload.model_copy(update={"sets": (warm,)})})
    assert any("needs engine.prefix_cache=true" in problem for problem in check_workload(run))


def asked_row(chunks: Sequence[Chunk], budget: int = 3) -> dict[str, Any]:
    request = Request("r", (1,), 64, (2,), False, RUN.sampler)
    result = Result(request, 0, 0, 9, tuple(chunks), None)
    return request_row({}, result, {}, ledger("r", result.chunks, budget, False))


def test_steps_told_at_the_end_belong_to_the_chunks_before() -> None:
    told = Told(cached_tokens=8, steps=((3, 3), (0, 0), (3, 2)))
    chunks = [
        Chunk(1, (1,)),
        Chunk(2, (1, 2, 3, 4)),
        Chunk(3, (5,)),
        Chunk(4, (6, 7)),
        Chunk(4, (), finish="length", told=told),
    ]
    found = asked_row(chunks)
    assert (found["step_drafted"], found["step_accepted"], found["cached_tokens"]) == ([3, 0, 3], [3, 0, 2], 8)
    names = ("prefill_tokens", "steps_with_draft", "steps_without_draft", "drafted", "accepted", "accepted_by_engine")
    assert [found[name] for name in names] == [1, 2, 1, 6, 5, 5]
    assert (found["output_tokens"], found["ended_inside_run"]) == (8, 1)


def test_steps_that_arrived_in_one_chunk_are_known_without_their_times() -> None:
    told = Told(steps=((3, 3), (3, 3)))
    found = asked_row([Chunk(1, (1,)), Chunk(2, (2,) * 8, finish="length", told=told)])
    assert (found["step_drafted"], found["chunk_tokens"]) == ([3, 3], [1, 8])
    assert (found["steps_with_draft"], found["drafted"], found["accepted"], found["steps_without_draft"]) == (2, 6, 6, 0)


@pytest.mark.parametrize(
    ("output", "told", "accepted", "draftless", "ended_inside"),
    [
        (9, (2, 6, 6), 6, 0, 0),  # 1 + 2 steps + 6 accepted
        (12, (2, 6, 6), 6, 3, 0),  # three steps had no draft
        (8, (2, 6, 6), 6, 0, 1),  # the last step's own token never came
        (7, (2, 6, 6), 5, 0, 1),  # and one accepted token neither
        (1, (0, 0, 0), 0, 0, 0),
    ],
)
def test_totals_told_at_the_end_keep_the_identity(
    output: int, told: tuple[int, int, int], accepted: int, draftless: int, ended_inside: int
) -> None:
    totals = Told(steps_with_draft=told[0], drafted=told[1], accepted=told[2])
    found = asked_row([Chunk(1, (1,)), Chunk(2, (2,) * (output - 1), finish="length", told=totals)])
    assert (found["accepted"], found["steps_without_draft"], found["ended_inside_run"]) == (accepted, draftless, ended_inside)
    p, s = found["prefill_tokens"], found["steps_with_draft"]
    assert found["output_tokens"] == p + s + draftless + accepted - ended_inside
    assert found["accepted_by_engine"] == told[2]


def test_totals_that_exceed_the_budget_are_refused() -> None:
    totals = Told(steps_with_draft=1, drafted=9, accepted=9)
    with pytest.raises(ValueError, match="acceptance length"):
        asked_row([Chunk(1, (1,)), Chunk(2, (2,) * 10, finish="length", told=totals)])


def test_nothing_told_is_nothing_known() -> None:
    found = asked_row([Chunk(1, (1,)), replace(Chunk(2, (2,)), finish="stop", told=Told(cached_tokens=3))])
    assert (found["accepted"], found["prefill_tokens"], found["cached_tokens"]) == (None, None, 3)
