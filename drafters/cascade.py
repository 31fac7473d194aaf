"""Serial drafting by several modules, one drafted token each: module m reads what module m - 1 made of the row before.

Row t of module m pairs the token x_{t+1} with the feature of row t - 1 of module m - 1 (for module 0: with the target's state
h_t), so it stands for the target row t - m, and its output predicts x_{t+2}. All modules therefore read the same tokens at the
same positions, shifted by a constant against each other, which rotary attention within one module does not see. The first m
rows of module m have no feature; they are computed with the others and no later row attends to them.

observe  runs the modules one after the other over the committed rows. Module m needs the output of module m - 1 at the row just
         before them, kept from the last observe.
propose  reads draft 1 off module 0. Then module m runs over drafts 1 to m, whose rows it has not seen, and gives draft m + 1.

So every module's keys and values at committed rows are those of one pass over the committed text. (DeepSeek-V3, 2412.19437,
section 2.2; `MTP Vanilla` in TensorRT-LLM.)

Shape legend: R requests, T rows per request, D modules, H width, M taps times target width, P slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafters.chain import ChainNetwork, SerialPasses, given, last_rows
from drafters.contract import Draft


class Cascade:
    """The cycle of D networks of one shape."""

    def __init__(self, networks: Sequence[ChainNetwork], passes: SerialPasses, slots: int) -> None:
        self.networks, self.passes, self.cache = list(networks), passes, passes.cache
        shape = (len(networks), slots, passes.layer.hidden)
        self.last_DPH = torch.zeros(shape, dtype=passes.dtype, device=passes.device)

    @torch.inference_mode()
    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        """Committed rows; see `contract.Drafter.observe`."""
        feature_RTH, starts, index = (
            self.networks[0].fuse(given(hidden_RTM)),
            self.passes.starts(slots),
            self.passes.index(slots),
        )
        for m, network in enumerate(self.networks):
            output_RTH = self.passes.run(m, network, slots, starts, tokens_RT, feature_RTH)
            feature_RTH = self._following(m, index, output_RTH[:, :-1])
            self.last_DPH[m, index] = last_rows(output_RTH, counts)[:, 0]
        self.cache.commit(slots, counts)

    @torch.inference_mode()
    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        """Greedy drafts, point masses, at most one per module."""
        width = max(budgets, default=0)
        if width < 1:
            return None
        if width > len(self.networks):
            raise ValueError(
                f"draft_budget: {width} exceeds the {len(self.networks)} MTP modules in use, each of which drafts one token; "
                "lower it, or set options.modules=1 to recycle the first"
            )
        starts, index = self.passes.starts(slots), self.passes.index(slots)
        drafted = [self._best(0, self.last_DPH[0, index])]
        output_RTH = self.last_DPH[0, index][:, None][:, :0]
        for m in range(1, width):
            feature_RTH = self._following(m - 1, index, output_RTH)
            output_RTH = self.passes.run(m, self.networks[m], slots, starts, torch.stack(drafted, dim=1), feature_RTH)
            drafted.append(self._best(m, output_RTH[:, -1]))
        return Draft(torch.stack(drafted, dim=1), [max(budget, 0) for budget in budgets])

    def _following(self, module: int, index: Tensor, output_RTH: Tensor) -> Tensor:
        """What the next module reads: features of this one's last committed row and of the rows `output_RTH` behind it."""
        outputs = torch.cat((self.last_DPH[module, index][:, None], output_RTH), dim=1)
        return self.networks[module].read(outputs)[1]

    def _best(self, module: int, output_RH: Tensor) -> Tensor:
        network = self.networks[module]
        return network.best(network.read(output_RH)[0])

    @property
    def bytes(self) -> int:
        return self.cache.bytes + self.last_DPH.nbytes
