"""From trainable modules to fast ones: the linear maps of a module, packed for inference in place."""

from __future__ import annotations

from torch import Tensor, nn

from drafters.layers import Linear


class PackedLinear(nn.Module):
    """An `nn.Linear` whose weight was handed to `drafters.layers.Linear`: forward only, no parameters."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach()
        self.linear = Linear(linear.weight.detach(), bias)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def pack(module: nn.Module) -> int:
    """Replace every `nn.Linear` below `module` by a packed one; returns the bytes of all that the module holds.

    Counted are the linear weights once, packed or not, and every other parameter and buffer.
    """
    linears = 0
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            packed = PackedLinear(child)
            setattr(module, name, packed)
            linears += packed.linear.bytes
        else:
            linears += pack(child)
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return linears + sum(tensor.nbytes for tensor in own)
