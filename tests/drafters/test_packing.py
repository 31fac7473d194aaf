"""Packing a module changes neither what it computes nor what it weighs."""

from __future__ import annotations

import torch
from torch import nn

from drafters.packing import PackedLinear, pack


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 24, bias=False))
        self.norm = nn.RMSNorm(24, eps=1e-5)
        nn.init.normal_(self.norm.weight)
        self.scale = nn.Parameter(torch.randn(24))

    def forward(self, x):
        return x + self.inner(self.norm(x)) * self.scale


def test_a_packed_module_computes_the_same_and_has_no_linear_or_norm_left():
    torch.manual_seed(0)
    block, x = Block(), torch.randn(5, 24)
    with torch.inference_mode():
        before = block(x)
        held = pack(block)
        after = block(x)
    assert torch.allclose(before, after, atol=1e-5)
    assert sum(isinstance(m, PackedLinear) for m in block.modules()) == 2
    assert not any(isinstance(m, nn.Linear | nn.RMSNorm) for m in block.modules())
    assert held == 4 * (24 * 40 + 40 + 40 * 24 + 24 + 24)
