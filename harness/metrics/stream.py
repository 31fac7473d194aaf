"""Time of one request, from the arrival of its chunks on one monotonic nanosecond clock. Every function takes a requests row.

`budget` is the draft budget of the serving, null for plain: a chunk that holds more than budget + 1 tokens is no step.
"""

from __future__ import annotations

from itertools import pairwise

from harness.metrics.rows import Row, integer, integers, outcome
from harness.metrics.value import Maybe, Missing

NS_PER_MS = 1e6


def token_chunks(row: Row) -> list[tuple[int, int]]:
    """(arrival ns, tokens) of the chunks that carry tokens, reasoning included; empty and usage-only chunks are not in it."""
    pairs = zip(integers(row["chunk_ns"]), integers(row["chunk_tokens"]), strict=True)
    return [(at, tokens) for at, tokens in pairs if tokens > 0]


def _refused(row: Row) -> Missing | None:
    if outcome(row) == "failed":
        return Missing("failed")
    return None if any(integers(row["chunk_tokens"])) else Missing("no_tokens")


def ttft_ms(row: Row) -> Maybe:
    """First chunk that carries a token of any kind (reasoning counts, its text may be empty) less the send time."""
    return _refused(row) or (token_chunks(row)[0][0] - int(row["sent_ns"])) / NS_PER_MS


def ttfa_ms(row: Row) -> Maybe:
    """First chunk that carries a token of the answer, after any reasoning, less the send time."""
    if refused := _refused(row):
        return refused
    chunks = zip(integers(row["chunk_ns"]), integers(row["chunk_tokens"]), row["chunk_reasoning"], strict=True)
    first = next((at for at, tokens, reasoning in chunks if tokens > 0 and not reasoning), None)
    return Missing("no_answer") if first is None else (first - int(row["sent_ns"])) / NS_PER_MS


def is_coalesced(row: Row, budget: int | None) -> bool:
    """True when a chunk holds more tokens than one step can make (budget + 1): chunks are then no steps, nor timed as such."""
    return max(integers(row["chunk_tokens"]), default=0) > (budget or 0) + 1


def tpot_ms(row: Row, budget: int | None) -> Maybe:
    """`(t_last - t_first) / (tokens after the first chunk)`: decode time per output token, prefill and queue excluded.

    Not over n - 1: the first chunk may carry several tokens. Null, not 0, when nothing came later than it; refused when
    coalesced.
    """
    if refused := _refused(row):
        return refused
    if is_coalesced(row, budget):
        return Missing("coalesced")
    chunks = token_chunks(row)
    after, took_ns = sum(tokens for _, tokens in chunks[1:]), chunks[-1][0] - chunks[0][0]
    return took_ns / NS_PER_MS / after if took_ns > 0 else Missing("one_chunk")


def per_user_tps(row: Row, budget: int | None) -> Maybe:
    """`1000 / tpot_ms`: decode rate that one user sees, in tokens per second."""
    tpot = tpot_ms(row, budget)
    return tpot if isinstance(tpot, Missing) else 1000 / tpot


def request_tps(row: Row) -> Maybe:
    """`O / (ended - sent)`: end-to-end output rate of one request in tokens per second, prefill time included."""
    if refused := _refused(row):
        return refused
    seconds = (int(row["ended_ns"]) - int(row["sent_ns"])) / 1e9
    return int(row["output_tokens"]) / seconds if seconds > 0 else Missing("no_tokens")


def chunk_gaps_ms(row: Row, budget: int | None) -> list[float] | Missing:
    """Gaps between chunks. A gap is not the time per token: a chunk carries as many tokens as were accepted."""
    if refused := _refused(row):
        return refused
    if is_coalesced(row, budget):
        return Missing("coalesced")
    times = [at for at, _ in token_chunks(row)]
    return [(b - a) / NS_PER_MS for a, b in pairwise(times)] or Missing("one_chunk")


def step_ms(row: Row, budget: int | None) -> list[float] | Missing:
    """Time of each decode step: the chunk gaps, where every chunk after the first is one step by the engine's own count."""
    gaps = chunk_gaps_ms(row, budget)
    speculating, draftless = integer(row["steps_with_draft"]), integer(row["steps_without_draft"])
    if isinstance(gaps, Missing):
        return gaps
    if speculating is None or draftless is None:
        return Missing("not_reported")
    return gaps if len(gaps) == speculating + draftless else Missing("chunks_are_not_steps")


def prefill_tps(row: Row) -> Maybe:
    """Computed (not cached) prompt tokens per second of time to the first token; at concurrency 1, where nothing queues."""
    if int(row["concurrency"]) > 1:
        return Missing("queued")
    ttft = ttft_ms(row)
    computed = int(row["prompt_tokens"]) - (integer(row["cached_tokens"]) or 0)
    return ttft if isinstance(ttft, Missing) else computed / (ttft / 1000) if ttft > 0 else Missing("no_tokens")


def depth_bucket(prompt_tokens: int) -> int:
    """Upper edge of the prompt's length bucket: powers of two from 128 tokens."""
    return max(128, 1 << (prompt_tokens - 1).bit_length())
