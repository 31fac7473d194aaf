"""Loading a transformers model, and reading its layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from drafters.contract import Tap


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The causal language model in a folder, from local files only. FileNotFoundError or ValueError when there is none."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no config.json; pass the folder of a transformers model")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if not config.is_encoder_decoder and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        loader: Any = AutoModelForCausalLM
    elif not config.is_encoder_decoder and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        loader = AutoModelForImageTextToText  # A wrapper without a text-only class; it is run on text alone.
    else:
        raise ValueError(f"{folder}/config.json: model_type {config.model_type!r} is not a causal language model; pick another")
    return loader.from_pretrained(folder, dtype=dtype, local_files_only=True)


def tap_points(model: Any, num_layers: int) -> dict[Tap, nn.Module]:
    """The modules whose outputs are the taps: each decoder layer, and for "final" their owner, which ends in the final norm."""
    owners = (m for m in model.get_decoder().modules() for child in m.children() if _is_stack(child, num_layers))
    decoder = next(owners, None)
    if decoder is None:
        raise ValueError(f"{type(model).__name__}: no list of {num_layers} decoder layers to tap; pick another target")
    layers = next(child for child in decoder.children() if _is_stack(child, num_layers))
    flags = [module.is_causal for module in layers.modules() if hasattr(module, "is_causal")]
    if flags and not any(flags):  # BERT and kin load as causal models, keep a cache, and attend both ways.
        raise ValueError(f"{type(model).__name__}: attends both ways, so it is not a causal language model; pick another")
    return {**dict(enumerate(layers.children())), "final": decoder}


def _is_stack(module: nn.Module, num_layers: int) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) == num_layers


@contextmanager
def outputs_of(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """The outputs of the modules during the block, in the modules' order; nothing is hooked outside it."""
    found: list[Tensor] = [torch.empty(0)] * len(modules)

    def keeper(index: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            found[index] = output if isinstance(output, Tensor) else output[0]

        return keep

    hooks = [module.register_forward_hook(keeper(index)) for index, module in enumerate(modules)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
