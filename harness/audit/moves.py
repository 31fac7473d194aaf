"""What an engine moves by itself when speculation is on, for factors that a command leaves to it.

Each rule was read in the source of the release in its table. Values are words where the number depends on the device: what
counts is whether the two sides get the same. A side that does not state its release gets them as `supposed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.audit.account import Fact, Origin, Scalar

Moved = dict[str, tuple[Scalar, str]]
WITHOUT_WEIGHTS = ("plain", "ngram", "suffix")
GRAPH_TOKENS = 512
SGLANG_CAP = 48
SGLANG_DELAY_FROM = 8


def moved(engine: str, facts: Mapping[str, Fact], method: str, origin: Origin) -> dict[str, Fact]:
    """Facts that the rules add: only for factors whose value is still open."""
    rules = {"vllm": vllm, "sglang": sglang, "llama_cpp": llama_cpp}
    found = rules[engine](lambda name: facts[name].value if name in facts else None, method)
    is_open = {name: pair for name, pair in found.items() if name not in facts or facts[name].value is None}
    return {name: Fact(value, origin, why) for name, (value, why) in is_open.items()}


def vllm(of: Callable[[str], Scalar], method: str) -> Moved:
    """config/vllm.py and config/speculative.py of 0.33.0."""
    runner = of("runner") or ("V1" if method == "suffix" or of("flag.speculative-config.parallel_drafting") else "V2")
    found: Moved = {"runner": (runner, "some drafters fall back to the older runner; pin VLLM_USE_V2_MODEL_RUNNER")}
    falls_back = runner == "V1" and method in ("ngram", "suffix")
    found["async_scheduling"] = not falls_back, "off for n-gram and suffix on the older runner, else on"
    if of("kv_blocks") is None:
        found["kv_tokens"] = _capacity(method), "a drafter's layers and weights come out of the same memory"
    if of("prefix_cache") is not False:
        drops = method in ("eagle", "eagle3", "mtp")
        reuse = "without the last block" if drops else "whole"
        found["prefix_cache_reuse"] = reuse, "EAGLE and MTP drop the last cached block; switch the prefix cache off"
    if of("cuda_graphs") != "off" and of("graph_batch_sizes") is None and of("graph_max_tokens") is None:
        found["graph_batch_sizes"] = _vllm_graphs(of, method), "sizes are counted in tokens, 1 + budget a request, up to 512"
    if method in ("dflash", "dspark"):
        found["max_active_requests"] = _vllm_active(of), "tokens of a step divided by the verify width"
    return found


def _capacity(method: str) -> str:
    return "what the target leaves" if method in WITHOUT_WEIGHTS else f"what the target and {method} leave"


def _vllm_graphs(of: Callable[[str], Scalar], method: str) -> str:
    budget, cap = of("draft_budget"), of("max_running_requests")
    if method != "plain" and not isinstance(budget, int):
        return "as many requests as the unstated budget allows"
    requests = GRAPH_TOKENS // (1 + budget) if method != "plain" and isinstance(budget, int) else GRAPH_TOKENS
    return f"up to {min(requests, cap) if isinstance(cap, int) else requests} requests"


def _vllm_active(of: Callable[[str], Scalar]) -> Scalar:
    budget, tokens, cap = of("draft_budget"), of("max_batched_tokens"), of("max_running_requests")
    if not isinstance(budget, int) or not isinstance(tokens, int):
        return "max_batched_tokens over the verify width"
    active = tokens // (budget + 1)
    return None if isinstance(cap, int) and active >= cap else active


def sglang(of: Callable[[str], Scalar], method: str) -> Moved:
    """arg_groups/speculative_hook.py of 0.5.23."""
    drafts = method != "plain"
    cap = SGLANG_CAP if drafts else "what memory allows"
    found: Moved = {"max_running_requests": (cap, "unset, every drafter gets 48; pin --max-running-requests")}
    if of("cuda_graphs") != "off" and of("graph_batch_sizes") is None:
        found["graph_batch_sizes"] = ("the list for drafters" if drafts else "the list for plain", "drafters get a denser list")
    if of("kv_tokens") is None:
        found["kv_tokens"] = _capacity(method), "a drafter's layers and weights come out of the same memory"
    width = of("draft_tree_width")
    if method != "ngram" and isinstance(width, int) and width > 1:
        found["attention_backend"] = "flashinfer", "a tree of drafts leaves fa3"
    slots = of("max_running_requests") or SGLANG_CAP
    if method in ("dflash", "dspark") and isinstance(slots, int) and slots >= SGLANG_DELAY_FROM:
        found["admission_delay"] = "2 to 4 free slots", "on by default for block drafters only; pin --min-free-slots-delay 1"
    else:
        found["admission_delay"] = 1, "off for this drafter"
    if of("mixed_chunk") is True and method == "ngram":
        found["mixed_chunk_resolved"] = False, "n-gram switches mixed chunks off"
    return found


def llama_cpp(of: Callable[[str], Scalar], method: str) -> Moved:
    """common/common.h of b11434: what is not stated is fitted to memory, target and drafter together."""
    if of("memory_fraction") == "fit off":
        return {}
    return {
        name: (_capacity(method), "fitted to memory together with the drafter; state it, and --fit off")
        for name in ("kv_tokens", "gpu_layers")
    }
