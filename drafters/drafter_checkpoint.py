"""Reading a published drafter checkpoint: every tensor by name and shape, none missing, none left over, all fitting the target.

A tensor that is silently skipped, misread or left at its initial value does not fail: it lowers acceptance, and output stays
right because verification corrects it. So everything here is an error, in one line that names the tensor or the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drafters.contract import Tap, Target
from drafters.weights import Weights, read_config

Shape = tuple[int | None, ...]


class DrafterWeights:
    """The tensors of one drafter folder, each taken once. Floating tensors come in `dtype`, integers as they are stored."""

    def __init__(self, folder: Path | str, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"checkpoint: {folder} is no folder; give one with config.json and .safetensors files")
        self._weights = Weights(self.folder, dtype, device)

    @property
    def names(self) -> frozenset[str]:
        """All tensor names in the folder, taken or not."""
        return frozenset(self._weights.names())

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def take(self, name: str, shape: Shape) -> Tensor:
        """The tensor, which must have this shape; null stands for any size. ValueError when it is missing or has another."""
        if name not in self._weights:
            raise ValueError(f"{self.folder}: tensor '{name}' {_text(shape)} is missing; {self._hint(name)}")
        tensor = self._weights[name]
        fits = len(shape) == tensor.dim() and all(want in (None, have) for want, have in zip(shape, tensor.shape, strict=True))
        if not fits:
            raise ValueError(
                f"{self.folder}: tensor '{name}' has shape {_text(tuple(tensor.shape))} and must have {_text(shape)}; "
                "config.json and tensors disagree, or the drafter was made for another target"
            )
        return tensor

    def optional(self, name: str, shape: Shape) -> Tensor | None:
        """The tensor, or null where the folder does not have it. A wrong shape is an error all the same."""
        return self.take(name, shape) if name in self._weights else None

    def finish(self, allowed: Iterable[str] = ()) -> None:
        """ValueError when tensors were never taken. `allowed` are regular expressions of whole names that may be left."""
        patterns = [re.compile(pattern) for pattern in allowed]
        left = sorted(n for n in self.names - self._weights.used if not any(p.fullmatch(n) for p in patterns))
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ValueError(f"{self.folder}: tensor '{left[0]}'{more} is not used; this drafter has another architecture")

    def _hint(self, name: str) -> str:
        """The nearest thing that is there: a tensor with the same ending, which tells a wrong prefix from a wrong file."""
        ending = name.rsplit(".", 2)[-2:]
        near = sorted(n for n in self.names if n.split(".")[-2:] == ending)
        return f"the nearest name there is '{near[0]}'" if near else "the checkpoint does not fit this architecture"


def load_into(module: nn.Module, weights: DrafterWeights, name_of: Callable[[str], str] = str) -> None:
    """Fill every parameter of `module` from the tensor `name_of(parameter's name)`, of exactly the parameter's shape.

    The module may have been made on the `meta` device: parameters are replaced, not copied into, and need no gradient.
    """
    for path, parameter in list(module.named_parameters()):
        owner, _, attribute = path.rpartition(".")
        value = weights.take(name_of(path), tuple(parameter.shape))
        setattr(module.get_submodule(owner), attribute, nn.Parameter(value, requires_grad=False))


def read_drafter_config(folder: Path | str) -> dict[str, Any]:
    """`config.json` of a drafter, flat: what speculators nests in `transformer_layer_config`, and multimodal targets in
    `text_config`, is lifted to the top, where keys of the top level win."""
    config = read_config(Path(folder))
    for nested in ("transformer_layer_config", "text_config"):
        if isinstance(inner := config.get(nested), Mapping):
            config = {**inner, **config}
    return config


def size_of(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number of `config.json`, at least 1; ValueError names the key. A null default makes it required."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {key} is {value!r} and must be a whole number of at least 1")
    return value


def check_options(options: Mapping[str, object], known: Mapping[str, Sequence[object] | None], drafter: str) -> None:
    """ValueError unless `options` has exactly the known keys, each with one of its values (null: any, checked elsewhere)."""
    for key in sorted({*options, *known}):
        if key not in known:
            raise ValueError(f"options.{key}: {drafter} has no such option; it takes {', '.join(known) or 'none'}")
        allowed = known[key]
        if key not in options:
            raise ValueError(f"options.{key}: {drafter} needs it; the arm's file in rigs/arm states it")
        if allowed is not None and not any(type(one) is type(options[key]) and one == options[key] for one in allowed):
            raise ValueError(f"options.{key}: {options[key]!r} must be one of {', '.join(map(str, allowed))}")


def taps_from_layer_inputs(ids: Sequence[int]) -> tuple[int, ...]:
    """Published layer numbers, which name the value that ENTERS a layer, as 0-based layer outputs (`contract.Tap`).

    So numbered are EAGLE-3 in SafeAILab's repository and in vLLM (`eagle_aux_hidden_state_layer_ids`), speculators, entries of
    transformers' `output_hidden_states`, and 1-based outputs. DFlash and DSpark (`target_layer_ids`), and explicit ids given to
    SGLang for EAGLE-3, name 0-based outputs already and must not pass here.
    """
    return tuple(i - 1 for i in ids)


def check_taps(ids: Sequence[Tap], num_layers: int, key: str = "layer ids") -> None:
    """ValueError unless every tap is `final` or a 0-based layer output of the target. `key` is where the ids come from."""
    for tap in ids:
        if tap != "final" and not (isinstance(tap, int) and not isinstance(tap, bool) and 0 <= tap < num_layers):
            raise ValueError(
                f"{key}: tap {tap!r} (a 0-based layer output) is outside the target's {num_layers} layers; "
                "the drafter was made for another target, or its ids are numbered otherwise"
            )
    if not ids:
        raise ValueError(f"{key}: no layer is named; the drafter needs at least one tap")


def check_fits(config: Mapping[str, Any], target: Target, shares_embedding: bool = True) -> None:
    """ValueError when the drafter's vocabulary, or the width that it shares with the target, is not the target's.

    A `vocab_size` below that of the target's table is accepted only within the table's padding (a multiple of 64).
    """
    vocab = size_of(config, "vocab_size", target.vocab_size)
    if vocab > target.vocab_size or target.vocab_size - vocab >= 64:
        raise ValueError(f"config.json: vocab_size {vocab} is not the target's {target.vocab_size}; {_OTHER_TARGET}")
    width = size_of(config, "target_hidden_size", size_of(config, "hidden_size"))
    if width != target.hidden_size:
        key = "target_hidden_size" if config.get("target_hidden_size") else "hidden_size"
        raise ValueError(f"config.json: {key} {width} is not the target's hidden size {target.hidden_size}; {_OTHER_TARGET}")
    own = size_of(config, "hidden_size")
    if shares_embedding and own != target.hidden_size:
        raise ValueError(
            f"config.json: hidden_size {own} is not the target's {target.hidden_size}, so its embedding cannot be shared; "
            "the checkpoint needs an embed_tokens.weight of its own"
        )


_OTHER_TARGET = "the drafter was made for another target"


def _text(shape: Shape) -> str:
    return "[" + ", ".join("*" if size is None else str(size) for size in shape) + "]"
