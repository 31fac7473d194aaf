"""Reading a Hugging Face folder: its config and its safetensors, whole or sharded, one tensor at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint folder. Raises FileNotFoundError that names the folder, ValueError for no config."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no config.json; give a checkpoint folder in Hugging Face format")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{path}: cannot be read as JSON ({problem}); copy the checkpoint again") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: holds no mapping of keys; give a checkpoint folder in Hugging Face format")
    return config


class Weights:
    """The tensors of a checkpoint folder by name, floats converted on reading; `used` collects the names that were read.

    On the `meta` device only headers are read: floats have their shapes and no values; maps of tokens are read all the same.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self.used: set[str] = set()
        self._file_of = _index(folder)
        self._open = {name: _opened(folder / name) for name in set(self._file_of.values())}

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def names(self) -> set[str]:
        return set(self._file_of)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise ValueError(f"{self.folder}: tensor '{name}' is missing; the checkpoint does not fit this architecture")
        self.used.add(name)
        if self.device.type == "meta" and (outline := self._outline(name)) is not None:
            return outline
        tensor: Tensor = self._open[self._file_of[name]].get_tensor(name)
        # Mapped pages would be read again from the file on every first touch inside a timed path: copy them out now.
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype  # token ids do not survive bfloat16
        device = "cpu" if self.device.type == "meta" else self.device
        return tensor.to(device=device, dtype=dtype, copy=True)

    def _outline(self, name: str) -> Tensor | None:
        """A tensor without values, from the header; null for a map of tokens, whose values say whether it fits."""
        header = self._open[self._file_of[name]].get_slice(name)
        shape, is_float = header.get_shape(), header.get_dtype().startswith(("F", "BF"))
        if not is_float and len(shape) == 1:
            return None
        return torch.empty(shape, dtype=self.dtype if is_float else torch.int8, device="meta")

    def optional(self, name: str) -> Tensor | None:
        return None if name not in self._file_of else self[name]

    def stacked(self, *names: str) -> Tensor:
        """Several weights with the same input, stacked along the output, so that one product serves them all."""
        return torch.cat([self[name] for name in names])


def _opened(file: Path) -> Any:
    """Raises ValueError that names a file which is cut off or no safetensors, FileNotFoundError for one that is not there."""
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as problem:
        raise ValueError(f"{file}: cannot be read as safetensors ({problem}); copy the checkpoint again") from None


def _index(folder: Path) -> dict[str, str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return weight_map
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no .safetensors file; convert the checkpoint to safetensors")
    found: dict[str, str] = {}
    for file in files:
        with _opened(file) as tensors:
            found.update(dict.fromkeys(tensors.keys(), file.name))
    return found
