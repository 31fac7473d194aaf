"""Serial drafting: one layer that reads a feature and a token per row, and is run again on what it has drafted.

A row i of the chain pairs a feature of position i with the token x_{i+1}; its output predicts x_{i+2}. Its rotary position is
i: in prefill, after a verification and while drafting alike.

observe  is the wide pass: every committed row, with features of the target. Its keys and values are the true ones; they
         overwrite what drafting wrote at the same positions. The output of each request's last row is kept.
propose  reads draft 1 off that output, then runs K - 1 narrow passes, each on the token just drafted and the feature recycled
         from the row before. Their keys and values are scratch behind the committed ones.

So after every observe the cache holds exactly what one pass over the committed text with target features would have written
(keeping drafted keys instead costs 8 to 15 % of acceptance length: vllm issue 14649).

Shape legend: R requests, T rows per request, K drafts, H draft width, M taps times target width, P slots, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from drafters.contract import Draft, Target
from drafters.decoder_layer import Attend, Keep, LayerConfig, Rotation, every_row, rotation_at
from drafters.layers import causal_mask, grouped_attention
from drafters.slots import SlotCache, slot_index

# Rows behind a slot's last committed one: a verification's padding, and drafted rows.
SCRATCH_ROWS = 64


class ChainNetwork(Protocol):
    """What a serial drafter computes. Leading dimensions are free."""

    def fuse(self, hidden_M: Tensor) -> Tensor:
        """Tapped target states to the feature [.., H] of a first pass."""
        ...

    def step(self, embedded_H: Tensor, feature_H: Tensor, rotation: Rotation, attend: Attend, keep: Keep) -> Tensor:
        """Rows through the layer: the output [.., H] of the rows to keep, before the last norm."""
        ...

    def read(self, output_H: Tensor) -> tuple[Tensor, Tensor]:
        """An output's state for `tokens` (after the last norm), and the feature that the next pass is given."""
        ...

    def best(self, state_H: Tensor) -> Tensor:
        """The likeliest token by this state, as an id of the target's vocabulary."""
        ...


class SerialPasses:
    """Passes of serial layers of one shape over the slots of a target; keys and values of module `m` are cache layer `m`."""

    def __init__(
        self, modules: int, layer: LayerConfig, embedding_VH: Tensor, target: Target, zero_first_embedding: bool = False
    ) -> None:
        self.layer, self.embedding_VH, self.zero_first_embedding = layer, embedding_VH, zero_first_embedding
        self.device, self.dtype = target.device, target.dtype
        capacity = target.max_length + SCRATCH_ROWS
        self.cache = SlotCache(modules, target.slots, capacity, layer.kv_heads, layer.head_dim, self.dtype, self.device)
        self.rotary = layer.rotary(capacity, self.dtype, self.device)

    def starts(self, slots: Sequence[int]) -> list[int]:
        """Committed rows of each slot, which is the position of the next one."""
        return [self.cache.lengths[slot] for slot in slots]

    def run(
        self,
        module: int,
        network: ChainNetwork,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens_RT: Tensor,
        feature_RTH: Tensor,
        last_of: Sequence[int] | None = None,
    ) -> Tensor:
        """Rows at positions `starts[r]` and on, over everything before them: outputs [R, T, H]. Commits nothing.

        With `last_of`, the numbers of real rows, only the last real row of each request comes out, [R, 1, H]: the others cost
        no more than their keys and values.

        The first `module` positions of a module have no feature to read (see `drafters.cascade`): no later row sees them.
        """
        width, span = tokens_RT.shape[1], max(starts) + tokens_RT.shape[1]
        if span > self.cache.capacity:
            raise ValueError(f"draft slot overflow: {span} rows in slots of {self.cache.capacity} tokens")
        starts_R = torch.tensor(starts, device=self.device)
        positions_RT = starts_R[:, None] + torch.arange(width, device=self.device)
        rows, where = self.cache.rows(self.index(slots), positions_RT), slot_index(slots, self.device)
        keep: Keep = every_row if last_of is None else lambda x: last_rows(x, last_of)
        # A single row at the end sees its whole span: no mask, and the kernel is faster without one.
        sees_all = len(slots) == 1 and module == 0 and (width == 1 or list(last_of or ()) == [width])
        mask_RGTS = None if sees_all else self._mask(module, keep(positions_RT), span)

        def attend(q_RTQD: Tensor, k_RTJD: Tensor, v_RTJD: Tensor) -> Tensor:
            self.cache.write(module, rows, torch.cat((k_RTJD, v_RTJD), dim=2).flatten(0, 1))
            return grouped_attention(q_RTQD, *self.cache.read(module, where, span), mask_RGTS)

        embedded_RTH = self._embed(tokens_RT, positions_RT)
        return network.step(embedded_RTH, feature_RTH, rotation_at(self.rotary, positions_RT), attend, keep)

    def index(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, device=self.device)

    def _mask(self, module: int, positions_RT: Tensor, span: int) -> Tensor:
        """What the query rows at these positions, consecutive in each request, see."""
        width = positions_RT.shape[1]
        group = self.layer.heads // self.layer.kv_heads
        mask_RGTS = causal_mask(positions_RT[:, 0], width, span, group, self.dtype)
        if module:
            real_RGT = (positions_RT >= module).repeat(1, group)
            mask_RGTS[..., :module].masked_fill_(real_RGT[:, None, :, None], float("-inf"))
        return mask_RGTS

    def _embed(self, tokens_RT: Tensor, positions_RT: Tensor) -> Tensor:
        embedded_RTH = self.embedding_VH[tokens_RT]
        return embedded_RTH * (positions_RT > 0).unsqueeze(-1) if self.zero_first_embedding else embedded_RTH


class Chain:
    """The cycle of one network that is fed its own outputs."""

    def __init__(self, network: ChainNetwork, passes: SerialPasses, slots: int) -> None:
        self.network, self.passes, self.cache = network, passes, passes.cache
        self.last_PH = torch.zeros((slots, passes.layer.hidden), dtype=passes.dtype, device=passes.device)

    @torch.inference_mode()
    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        """Committed rows; see `contract.Drafter.observe`. Padding rows write scratch that nothing reads."""
        feature_RTH = self.network.fuse(given(hidden_RTM))
        output_R1H = self.passes.run(0, self.network, slots, self.passes.starts(slots), tokens_RT, feature_RTH, counts)
        self.cache.commit(slots, counts)
        self.last_PH[self.passes.index(slots)] = output_R1H[:, 0]

    @torch.inference_mode()
    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        """Greedy drafts, point masses. All requests run to the widest budget: a row more costs less than another batch."""
        width = max(budgets, default=0)
        if width < 1:
            return None
        if width > SCRATCH_ROWS:
            raise ValueError(f"draft_budget: {width} exceeds the {SCRATCH_ROWS} scratch rows of a serial drafter; lower it")
        starts = self.passes.starts(slots)
        state_RH, feature_RH = self.network.read(self.last_PH[self.passes.index(slots)])
        drafted = [self.network.best(state_RH)]
        for step in range(width - 1):
            ends = [start + step for start in starts]
            output_RTH = self.passes.run(0, self.network, slots, ends, drafted[-1][:, None], feature_RH[:, None])
            state_RH, feature_RH = self.network.read(output_RTH[:, 0])
            drafted.append(self.network.best(state_RH))
        return Draft(torch.stack(drafted, dim=1), [max(budget, 0) for budget in budgets])

    @property
    def bytes(self) -> int:
        return self.cache.bytes + self.last_PH.nbytes


def given(hidden_RTM: Tensor | None) -> Tensor:
    """The tapped states, or a `ValueError` when the loop did not bring any."""
    if hidden_RTM is None:
        raise ValueError("observe: no tapped states; the loop must ask the target for the drafter's taps")
    return hidden_RTM


def last_rows(x_RTH: Tensor, counts: Sequence[int]) -> Tensor:
    """The last real row of each request, [R, 1, H], or of whatever stands behind R and T."""
    last_R = torch.tensor(counts, device=x_RTH.device) - 1
    return x_RTH[torch.arange(len(counts), device=x_RTH.device), last_R].unsqueeze(1)
