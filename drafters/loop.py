"""The one loop that serves every arm: continuous batching over slots, chunked prefill, draft, verify, commit.

An iteration is at most `prefill_chunk` prompt tokens, of one request after another, and then one decode step over all running
requests. `plain` is the arm without a drafter: the same loop, nothing to propose.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from drafters.contract import Draft, Drafter, Forward, Tap, Target
from drafters.sampling import RequestRandom, SamplingParams
from drafters.stopwatch import Stopwatch, stopwatch
from drafters.verify import Rule, Verdict, verify


@dataclass(frozen=True, slots=True)
class Job:
    """One request: prompt token ids, a limit, the tokens that stop it, and how to sample."""

    job_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Emission:
    """Tokens that one request gained. `drafted` is null for the token that prefill emits.

    `accepted` is the verifier's count and may run past a stop token that cut `tokens` short. `finish` is `stop` or `length`.
    """

    job_id: str
    tokens: list[int]
    drafted: int | None
    accepted: int | None
    finish: str | None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one prefill chunk or decode step cost. Durations in ns on the monotonic clock; `rows` includes padding."""

    started_ns: int
    kind: str
    requests: int
    rows: int
    context_tokens: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    total_ns: int
    drafted: int
    accepted: int
    emitted: int


@dataclass(slots=True)
class Totals:
    """Monotone since launch."""

    verify_steps: int = 0
    draftless_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    output_tokens: int = 0
    prefill_tokens: int = 0


@dataclass(slots=True)
class _Running:
    job: Job
    slot: int
    random: RequestRandom
    prefilled: int = 0
    anchor: int = -1
    emitted: int = 0

    @property
    def unread(self) -> int:
        return len(self.job.prompt) - self.prefilled

    @property
    def remaining(self) -> int:
        return self.job.max_tokens - self.emitted


@dataclass(slots=True)
class Loop:
    """Requests in, emissions out. Not thread safe: one thread calls `submit`, `cancel` and `step`.

    An iteration reads `prefill_chunk` prompt tokens, then decodes the batch once. A first token is delivered before the batch
    decodes: held back, it would arrive a decode step late, and the step behind it would seem to have taken no time.
    """

    target: Target
    drafter: Drafter | None
    budget: int
    rule: Rule
    prefill_chunk: int
    records: list[StepRecord] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    _waiting: deque[Job] = field(default_factory=deque)
    _prefilling: deque[_Running] = field(default_factory=deque)
    _decoding: list[_Running] = field(default_factory=list)
    _owes_decode: bool = False  # of an iteration whose prompts were read and delivered
    _free: list[int] = field(init=False)
    _watch: Stopwatch = field(init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.target.slots))
        self._watch = stopwatch(self.target.device)

    def submit(self, job: Job) -> None:
        """Queue a request. Raises ValueError when it can never fit."""
        if not job.prompt:
            raise ValueError(f"request {job.job_id}: empty prompt")
        if len(job.prompt) + job.max_tokens > self.target.max_length:
            raise ValueError(
                f"request {job.job_id}: {len(job.prompt)} prompt + {job.max_tokens} new tokens exceed the context of "
                f"{self.target.max_length}; raise target.context and engine.kv_tokens"
            )
        self._waiting.append(job)

    def cancel(self, job_id: str) -> None:
        """Forget a request wherever it is; unknown ids are ignored, since it may just have ended."""
        self._waiting = deque(job for job in self._waiting if job.job_id != job_id)
        for running in [*self._prefilling, *self._decoding]:
            if running.job.job_id == job_id:
                self._release(running)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._prefilling or self._decoding)

    @torch.inference_mode()
    def step(self) -> list[Emission]:
        """One iteration, or its first half when that has first tokens to deliver. Emissions come in the order of the batch."""
        if not self._owes_decode:
            self._admit()
            if first := self._read_prompts():
                self._owes_decode = True
                return first
        self._owes_decode = False
        return self._decode() if self._decoding else []

    def _read_prompts(self) -> list[Emission]:
        """Up to `prefill_chunk` tokens of those that wait, in order; the first tokens of those that were read to their end."""
        emissions: list[Emission] = []
        left = self.prefill_chunk
        while self._prefilling and left > 0:
            rows = min(left, self._prefilling[0].unread)
            emissions += self._prefill(rows)
            left -= rows
        return emissions

    def _admit(self) -> None:
        # The lowest free slots keep the running ones contiguous, and a run of slots is a view of the cache.
        while self._waiting and self._free:
            slot = min(self._free)
            self._free.remove(slot)
            job = self._waiting.popleft()
            self._prefilling.append(_Running(job, slot, RequestRandom(job.params.seed)))

    def _prefill(self, rows: int) -> list[Emission]:
        """The next `rows` tokens of the prompt that has waited longest."""
        started = time.monotonic_ns()
        running = self._prefilling[0]
        prompt, done = running.job.prompt, running.prefilled
        chunk = prompt[done : done + rows]
        last = rows == running.unread
        tokens = torch.tensor([chunk], device=self.target.device)
        with self._watch.phase("verify"):
            out = self.target.forward([running.slot], tokens, [len(chunk)], True, self._taps)
        self.target.commit([running.slot], [len(chunk)])
        running.prefilled += len(chunk)
        first: list[int] = []
        if last:
            with self._watch.phase("sample"):
                first = verify(out.logits_RTV, None, [running.job.params], [running.random], self.rule).next_tokens
        # The token behind the chunk's last row is the prompt's next, or the first one sampled.
        following = [*chunk[1:], first[0] if last else prompt[running.prefilled]]
        self._observe([running], out, [following])
        emissions: list[Emission] = []
        if last:
            self._prefilling.popleft()
            self._decoding.append(running)
            self._decoding.sort(key=lambda r: r.slot)
            emissions = [self._emit(running, first, None, None)]
        self.totals.prefill_tokens += len(chunk)
        self._record(started, "prefill", 1, len(chunk), done, 0, 0, len(first))
        return emissions

    def _decode(self) -> list[Emission]:
        started = time.monotonic_ns()
        batch = list(self._decoding)
        slots = [r.slot for r in batch]
        context = sum(self.target.length(slot) for slot in slots)
        draft = self._propose(batch, slots)
        lengths = draft.lengths if draft else [0] * len(batch)
        tokens = torch.tensor([[r.anchor] for r in batch], device=self.target.device)
        if draft:
            tokens = torch.cat((tokens, draft.tokens_RK), dim=1)
        with self._watch.phase("verify"):
            out = self.target.forward(slots, tokens, [n + 1 for n in lengths], False, self._taps)
        with self._watch.phase("sample"):
            verdict = verify(out.logits_RTV, draft, [r.job.params for r in batch], [r.random for r in batch], self.rule)
        self.target.commit(slots, [a + 1 for a in verdict.accepted])
        gained = _gained(draft, verdict)
        self._observe(batch, out, gained)
        emissions = [
            self._emit(r, tokens, drafted, accepted)
            for r, tokens, drafted, accepted in zip(batch, gained, lengths, verdict.accepted, strict=True)
        ]
        self._count(lengths, verdict.accepted)
        emitted = sum(len(e.tokens) for e in emissions)
        self._record(started, "decode", len(batch), tokens.numel(), context, sum(lengths), sum(verdict.accepted), emitted)
        return emissions

    def _propose(self, batch: Sequence[_Running], slots: Sequence[int]) -> Draft | None:
        """Drafts within the budget; never more than could be delivered before the bonus token."""
        if self.drafter is None:
            return None
        budgets = [min(self.budget, r.remaining - 1) for r in batch]
        with self._watch.phase("draft"):
            return self.drafter.propose(slots, budgets)

    def _observe(self, batch: Sequence[_Running], out: Forward, following: Sequence[Sequence[int]]) -> None:
        if self.drafter is None:
            return
        with self._watch.phase("draft"):
            counts = [len(tokens) for tokens in following]
            width = max(counts)
            padded = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in following], device=self.target.device)
            hidden = None if out.hidden_RTM is None else out.hidden_RTM[:, :width]
            self.drafter.observe([r.slot for r in batch], hidden, padded, counts)

    def _emit(self, running: _Running, tokens: list[int], drafted: int | None, accepted: int | None) -> Emission:
        """Deliver tokens up to a stop token or the limit, and let the request go when it has ended."""
        running.anchor = tokens[-1]
        tokens = tokens[: running.remaining]
        finish = None
        for i, token in enumerate(tokens):
            if token in running.job.stop_ids:
                tokens, finish = tokens[: i + 1], "stop"
                break
        running.emitted += len(tokens)
        if finish is None and running.remaining == 0:
            finish = "length"
        self.totals.output_tokens += len(tokens)
        if finish:
            self._release(running)
        return Emission(running.job.job_id, tokens, drafted, accepted, finish)

    def _release(self, running: _Running) -> None:
        if running in self._decoding:
            self._decoding.remove(running)
        if running in self._prefilling:
            self._prefilling.remove(running)
        self.target.release(running.slot)
        if self.drafter:
            self.drafter.release(running.slot)
        self._free.append(running.slot)

    @property
    def _taps(self) -> tuple[Tap, ...]:
        return self.drafter.taps if self.drafter else ()

    def _count(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        speculating = sum(n > 0 for n in drafted)
        self.totals.verify_steps += speculating
        self.totals.draftless_steps += len(drafted) - speculating
        self.totals.drafted += sum(drafted)
        self.totals.accepted += sum(accepted)

    def _record(
        self, started: int, kind: str, requests: int, rows: int, context: int, drafted: int, accepted: int, emitted: int
    ) -> None:
        spent = self._watch.read()
        phases = (spent.get("draft", 0), spent.get("verify", 0), spent.get("sample", 0))
        total = time.monotonic_ns() - started
        self.records.append(StepRecord(started, kind, requests, rows, context, *phases, total, drafted, accepted, emitted))


def _gained(draft: Draft | None, verdict: Verdict) -> list[list[int]]:
    """Accepted drafts and the token behind them, per request."""
    if draft is None:
        return [[token] for token in verdict.next_tokens]
    drafted = draft.tokens_RK.tolist()
    return [
        [*tokens[:accepted], following]
        for tokens, accepted, following in zip(drafted, verdict.accepted, verdict.next_tokens, strict=True)
    ]
