"""One request of vLLM: the body that asks for it, and what its stream tells beside tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.engines.base import Counters, Request, Told
from harness.engines.server_metrics import Families, total


def body(request: Request, served: str) -> dict[str, Any]:
    """Token ids in and out; every sampling parameter is stated, so that no server default is left."""
    sampler = request.sampler
    return {
        "model": served,
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k,
        "min_p": 0.0,
        "seed": sampler.seed,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n": 1,
        "stop_token_ids": [] if request.ignore_eos else list(request.stop_ids),
        "ignore_eos": request.ignore_eos,
        "min_tokens": 0,
        "add_special_tokens": False,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


class SpeculationTeller:
    """What vLLM tells about a request's drafts in its last event (`--per-request-spec-decode-metrics detailed`).

    vLLM leaves steps without a draft out of its lists. The steps are given only when the stream proves that there were none:
    one chunk per listed step, each with its accepted tokens and one more; the last may be cut. Otherwise only totals are.
    """

    def __init__(self) -> None:
        self._delivered: list[int] = []

    def __call__(self, event: Mapping[str, Any]) -> Told | None:
        for choice in event.get("choices") or ():
            if ids := choice.get("token_ids"):
                self._delivered.append(len(ids))
        told = (event.get("metrics") or {}).get("speculative_decoding")
        return None if told is None else self._told(told)

    def _told(self, told: Mapping[str, Any]) -> Told:
        accepted, drafted = told.get("per_step_accepted") or [], told.get("per_step_drafted") or []
        return Told(
            steps=tuple(zip(drafted, accepted, strict=True)) if self._are_all(accepted) else None,
            steps_with_draft=int(told["num_spec_steps"]),
            drafted=int(told["num_draft_tokens"]),
            accepted=int(told["num_accepted_draft_tokens"]),
        )

    def _are_all(self, accepted: list[int]) -> bool:
        steps = self._delivered[1:]  # the first chunk is the prefill's
        if not accepted or len(steps) != len(accepted):
            return False
        whole = all(count == a + 1 for count, a in zip(steps[:-1], accepted[:-1], strict=True))
        return whole and steps[-1] <= accepted[-1] + 1


def counters(families: Families) -> Counters:
    """Totals since launch, over engines and labels. Those of speculation are absent in a plain arm, and null here."""
    return Counters(
        requests=total(families, "vllm:request_success_total"),
        verify_steps=total(families, "vllm:spec_decode_num_drafts_total"),
        drafted=total(families, "vllm:spec_decode_num_draft_tokens_total"),
        accepted=total(families, "vllm:spec_decode_num_accepted_tokens_total"),
        output_tokens=total(families, "vllm:generation_tokens_total"),
        prefill_tokens=_computed(families),
        cached_tokens=total(families, "vllm:prompt_tokens_cached_total"),
        preemptions=total(families, "vllm:num_preemptions_total"),
    )


def _computed(families: Families) -> int | None:
    """Prompt tokens that were computed and not taken from a cache."""
    samples = families.get("vllm:prompt_tokens_by_source_total")
    if not samples:
        return None
    return round(sum(sample.value for sample in samples if sample.labels.get("source") == "local_compute"))
