"""GGUF files that this repository writes: a header, fields copied from another file, tensors. (ggml-org/ggml, docs/gguf.md)

A Python sequence of sizes [O, I] is stored as ggml's ne = {I, O}: no transposing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Tensor = npt.NDArray[Any]
Value = bool | int | float | str | list[int] | list[bool]

_STRUCTURE = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def write_gguf(
    path: Path, arch: str, fields: Mapping[str, Value], copied: Mapping[str, Any], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """One file. `copied` are fields of an open reader, taken over with their types; a name in `fields` wins over them.

    Keys of `fields` that begin with a dot belong to the architecture: `.block_count` is stored as `<arch>.block_count`. Floats
    are stored as float32, whole numbers as uint32, those in lists as int32. Written under another name first, so that a file
    that is there is whole.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")  # several may export the same drafter at once
    try:
        _write(scratch, arch, fields, copied, tensors)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _write(
    path: Path, arch: str, fields: Mapping[str, Value], copied: Mapping[str, Any], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    writer = gguf.GGUFWriter(path, arch)
    named = {f"{arch}{key}" if key.startswith(".") else key: value for key, value in fields.items()}
    for name, value in named.items():
        _add(writer, name, value)
    for name, field in copied.items():
        if name not in named and not name.startswith(_STRUCTURE):
            sub_type = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for name, tensor in tensors:
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fields_of(reader: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of an open `gguf.GGUFReader` whose names begin so."""
    return {name: field for name, field in reader.fields.items() if name.startswith(prefix)}


def _add(writer: Any, name: str, value: Value) -> None:
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        writer.add_key_value(name, value, kinds.ARRAY, kinds.BOOL if isinstance(value[0], bool) else kinds.INT32)
        return
    kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}[type(value)]
    writer.add_key_value(name, value, kind)
