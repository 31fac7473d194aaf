"""One request of SGLang's own route `/generate`: the body that asks for it, and its stream read as chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.engines.base import Chunk, Counters, EngineError, Request, Told
from harness.engines.server_metrics import Families, total

ALL_TOKENS = -1  # SGLang's word for "no top-k"


def body(request: Request) -> dict[str, Any]:
    """Token ids in and out; every sampling parameter is stated, so that no server default is left."""
    sampler = request.sampler
    return {
        "input_ids": list(request.prompt_ids),
        "sampling_params": {
            "max_new_tokens": request.max_tokens,
            "min_new_tokens": 0,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "top_k": sampler.top_k or ALL_TOKENS,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": sampler.seed,
            "stop_token_ids": [] if request.ignore_eos else list(request.stop_ids),
            "ignore_eos": request.ignore_eos,
            "n": 1,
        },
        "stream": True,
    }


class GenerateReader:
    """Reads one answer. `budget` is the arm's draft budget, 0 for plain.

    An event carries all ids so far, or (`--incremental-streaming-output`) the new ones: the new ones are the last
    `completion_tokens - seen` in both. An empty text says nothing, for text is held back until it is whole UTF-8.
    """

    def __init__(self, request: Request, budget: int) -> None:
        self._request, self._budget = request, budget
        self._delivered: list[int] = []
        self._finished = False

    def read(self, arrived_ns: int, event: Mapping[str, Any]) -> list[Chunk]:
        meta = event["meta_info"]
        fresh = int(meta["completion_tokens"]) - sum(self._delivered)
        ids = tuple(event.get("output_ids") or ())
        if fresh < 0 or fresh > len(ids):
            raise EngineError(
                f"request {self._request.request_id}: {meta['completion_tokens']} tokens are counted, but the stream brought "
                f"{len(ids)} ids after {sum(self._delivered)}; tokens are missing"
            )
        if fresh:
            self._delivered.append(fresh)
        finish = self._finish(meta)
        if not fresh and finish is None:
            return []
        self._finished = finish is not None
        told = self._told(meta) if finish else None
        return [Chunk(arrived_ns, ids[len(ids) - fresh :], finish=finish, told=told)]

    def end(self) -> list[Chunk]:
        if not self._finished:
            raise EngineError(f"request {self._request.request_id}: the stream ended without a finish reason")
        return []

    def _finish(self, meta: Mapping[str, Any]) -> str | None:
        reason = meta.get("finish_reason")
        if reason is None:
            return None
        kind, message = str(reason.get("type")), str(reason.get("message", "no reason given"))
        if kind not in ("stop", "length"):
            raise EngineError(f"request {self._request.request_id}: the server finished it with '{kind}': {message}")
        return kind

    def _told(self, meta: Mapping[str, Any]) -> Told:
        """Totals of the request; steps only where the stream proves them.

        SGLang's `spec_accept_length` counts the prefill token and its drafted total is nominal (verifications times budget), so
        neither is used where steps are known. They are known when there is one chunk per verification and their accepted
        tokens add up to the engine's: then each step drafted the whole budget and accepted all but one of its tokens.
        """
        verified, correct = meta.get("spec_verify_ct"), meta.get("spec_num_correct_drafts")
        cached = None if meta.get("cached_tokens") is None else int(meta["cached_tokens"])
        if verified is None or correct is None:
            return Told(cached_tokens=cached)
        steps = [count - 1 for count in self._delivered[1:]]  # the first chunk is the prefill's
        known = len(steps) == verified and sum(steps) == correct and all(a <= self._budget for a in steps)
        drafted = meta.get("spec_num_proposed_drafts", verified * self._budget)
        return Told(
            cached_tokens=cached,
            steps=tuple((self._budget, accepted) for accepted in steps) if known else None,
            steps_with_draft=int(verified),
            drafted=int(drafted),
            accepted=int(correct),
        )


def counters(families: Families) -> Counters:
    """Totals since launch, over labels. SGLang counts verifications and no drafts; its acceptance gauges are windows, not used.

    A counter with labels appears with its first increment, so one that is not there yet is zero once prompts are counted.
    """
    prompt = total(families, "sglang:prompt_tokens_total")
    if prompt is None:
        return Counters()
    cached = total(families, "sglang:cached_tokens_total") or 0
    return Counters(
        requests=total(families, "sglang:num_requests_total") or 0,
        verify_steps=total(families, "sglang:spec_verify_calls_total") or 0,
        output_tokens=total(families, "sglang:generation_tokens_total") or 0,
        prefill_tokens=prompt - cached,
        cached_tokens=cached,
        preemptions=total(families, "sglang:num_retracted_requests_total") or 0,
    )
