"""The seams of the reference engine: what a target and a drafter owe the loop.

Shape legend: R requests in this call, T rows per request, K draft budget, H hidden size, M taps times H, V vocabulary.
Rows are padded on the right to a common T; `counts_R` says how many rows of each request are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Tap = int | Literal["final"]


@dataclass(frozen=True, slots=True)
class Forward:
    """A target pass. `logits_RTV` covers the rows asked for; `hidden_RTM` concatenates the taps in their order, or null."""

    logits_RTV: Tensor
    hidden_RTM: Tensor | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal. `tokens_RK` int64 on the target's device, padded; `lengths_R` real drafts per request (a CPU list).

    `probabilities_RKV` is the realised proposal distribution that each token was drawn from, or null when every token is a
    point mass (greedy and n-gram drafts).
    """

    tokens_RK: Tensor
    lengths: list[int]
    probabilities_RKV: Tensor | None = None


class Target(Protocol):
    """A causal language model with one cache slot per running request.

    `forward` appends rows behind the committed tokens of each slot but commits nothing; `commit` then keeps the first
    `counts[r]` of those rows (and for recurrent targets restores the state behind them). So a rejected row costs no work.
    """

    hidden_size: int
    num_layers: int
    vocab_size: int
    slots: int
    max_length: int
    device: torch.device
    dtype: torch.dtype

    @property
    def embedding(self) -> Tensor:
        """The input embedding table [V, H], raw; drafters that own none share it."""
        ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """States after the final norm [..., H] to logits [..., V]; drafters that own none share it."""
        ...

    def forward(
        self, slots: Sequence[int], tokens_RT: Tensor, counts: Sequence[int], last_only: bool, taps: Sequence[Tap]
    ) -> Forward:
        """Rows `tokens_RT` (int64) of each slot. With `last_only`, logits hold one row per request: row `counts[r] - 1`."""
        ...

    def commit(self, slots: Sequence[int], counts: Sequence[int]) -> None: ...

    def length(self, slot: int) -> int: ...

    def release(self, slot: int) -> None: ...

    def memory(self) -> dict[str, int]:
        """Bytes: `weights`, `kv`; and `kv_tokens`."""
        ...


class Drafter(Protocol):
    """Proposes tokens. Built with `Drafter(target, options, checkpoint)`.

    `observe` receives ragged rows of pairs (h_i, x_{i+1}): a tapped state and the token that follows it. Prefill is the first
    observe; after a verification that accepted a drafts it receives a+1 rows, the last token being the new anchor, whose own
    state does not exist yet. A drafter rolls back its own speculative state.

    A class may have `check_options(options)`: it raises ValueError (`options.NAME: what; what to do`) before anything is
    loaded, so that a rig's mistake is told when the run is planned and not by a process that dies. What a checkpoint is, a plan
    learns by building the drafter on the `meta` device (`drafters.outline`), unless its constructor reads values of weights.
    """

    taps: tuple[Tap, ...]

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None: ...

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        """At most `budgets[r]` drafts per request; null when no request has any."""
        ...

    def release(self, slot: int) -> None: ...

    def memory(self) -> dict[str, int]:
        """Bytes: `weights`, `state`."""
        ...
