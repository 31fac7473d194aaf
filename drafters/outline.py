"""A target and a drafter without their weights, on torch's `meta` device: what fits, and how many bytes it takes.

A drafter that is built here checks the names and shapes of its tensors, its config and its options exactly as a serving does,
because it is the same code; only that tensors come from headers (`drafters.weights.Weights`) and caches hold nothing.
It costs milliseconds, so a plan can do it for every arm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafters.contract import Drafter
from drafters.dense import DenseTarget
from drafters.drafter_checkpoint import read_drafter_config, size_of
from drafters.layers import best_kind, onednn_packs

META = torch.device("meta")
_NEEDS_VALUES = re.compile(r"\bmeta\b")  # and no "metadata"
_ANY_DEPTH = 1 << 16  # more layers than any target has: a drafter's layer ids are not judged by it


class TargetOutline:
    """As much of `contract.Target` as drafters are built from: sizes, an embedding and a head of them."""

    def __init__(self, sizes: tuple[int, int, int], dtype: torch.dtype, slots: int, max_length: int) -> None:
        """`sizes` are the width, the number of layers and the tokens of the vocabulary."""
        self.hidden_size, self.num_layers, self.vocab_size = sizes
        self.dtype, self.device, self.slots, self.max_length = dtype, META, slots, max_length
        self.embedding: Tensor = torch.empty((self.vocab_size, self.hidden_size), dtype=dtype, device=META)
        self.head: Callable[[Tensor], Tensor] = lambda state_H: state_H @ self.embedding.T


def outline_of(folder: Path, dtype: str, slots: int, max_length: int) -> TargetOutline:
    """The target whose `config.json` is in a folder. Raises ValueError that names a key, FileNotFoundError without a config."""
    config = read_drafter_config(folder)
    keys = ("hidden_size", "num_hidden_layers", "vocab_size")
    width, layers, vocab = (size_of(config, key) for key in keys)
    return TargetOutline((width, layers, vocab), getattr(torch, dtype), slots, max_length)


def outline_for(checkpoint: str, dtype: str, slots: int, max_length: int) -> TargetOutline:
    """The target that a drafter's config says it was made for: where the target itself is not here to be compared with."""
    config = read_drafter_config(checkpoint)
    width = size_of(config, "target_hidden_size", size_of(config, "hidden_size"))
    return TargetOutline((width, _ANY_DEPTH, size_of(config, "vocab_size")), getattr(torch, dtype), slots, max_length)


def drafter_outline(
    drafter: type, target: TargetOutline, options: Mapping[str, object], checkpoint: str | None
) -> Drafter | None:
    """The drafter as a serving would build it. Raises ValueError or OSError for whatever does not fit, as a serving would.

    Null for one that reads its weights' values while it is built, which only a serving can judge.
    """
    try:
        built: Drafter = drafter(target, options, checkpoint)
    except (NotImplementedError, RuntimeError) as problem:
        # torch has no type of its own for "this needs values": it raises these two, and names the device in the text. Anything
        # else of these types, such as sizes that do not go together, would end a serving too.
        if _NEEDS_VALUES.search(str(problem)):
            return None
        raise ValueError(str(problem)) from None
    return built


def target_memory(
    implementation: Any, folder: Path, dtype: str, device: str, slots: int, max_length: int
) -> dict[str, int] | None:
    """`Target.memory` of a dense target before it is loaded; null for other implementations, which load to know.

    On a CPU a head is packed, so one that is tied to the embedding is held a second time.
    """
    if not (isinstance(implementation, type) and issubclass(implementation, DenseTarget)):
        return None
    built = implementation(folder, getattr(torch, dtype), META, slots, max_length)
    told: dict[str, int] = built.memory()
    weight = torch.empty((1, 1), dtype=getattr(torch, dtype))
    if device == "cpu" and not built.head_is_a_copy and (onednn_packs(weight) or best_kind(weight) != "torch"):
        told["weights"] += built.embedding.nbytes
    return told
