"""The header of a GGUF file: its architecture and sizes, how many tokens its vocabulary has, the names of its tensors.

The package `gguf` makes an array of every token, which takes seconds for a vocabulary of 50,000; here they are stepped over.
(GGUF versions 2 and 3, little endian: ggml-org/ggml, docs/gguf.md.)
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a scalar by its type
_UINT32, _STRING, _ARRAY = 4, 8, 9


@dataclass(frozen=True, slots=True)
class Header:
    """Text fields and whole numbers of 32 bits by name. `tokens` is null for a file without a tokenizer."""

    fields: Mapping[str, str | int]
    tokens: int | None
    tensors: frozenset[str]

    @property
    def architecture(self) -> str | None:
        return self._text("general.architecture")

    @property
    def source(self) -> str | None:
        """The hash of the checkpoint that `drafters.export_gguf` made the file from; null for files from elsewhere."""
        return self._text("samerig.source")

    def size(self, name: str) -> int | None:
        """A size of the architecture, such as `block_count`."""
        value = self.fields.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int) else None

    def _text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None


def read_header(path: Path) -> Header:
    """Raises ValueError for a file that is no GGUF, or ends inside its header; OSError where it cannot be read."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Cursor(data).header()
        except ValueError as error:
            raise ValueError(f"{path}: no header of a GGUF file: {error}; fetch it again") from None


class _Cursor:
    """Reads one header from its beginning."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise ValueError(f"it begins with {self._data[:4]!r}")
        self._at = 4
        version, tensors, fields = self._take("<IQQ")
        if version not in (2, 3):
            raise ValueError(f"it is of version {version}")
        found: dict[str, str | int] = {}
        tokens: int | None = None
        for _ in range(fields):
            name, (kind,) = self._string(), self._take("<I")
            if kind == _STRING:
                found[name] = self._string()
            elif kind == _UINT32:
                (found[name],) = self._take("<I")
            elif name == "tokenizer.ggml.tokens" and kind == _ARRAY:
                tokens = self._skip_array()
            else:
                self._skip(kind)
        return Header(found, tokens, frozenset(self._tensor() for _ in range(tensors)))

    def _tensor(self) -> str:
        name, (dimensions,) = self._string(), self._take("<I")
        self._at += 8 * dimensions + 12  # its shape, type and offset
        return name

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._skip_array()
        elif kind in _SIZES:
            self._at += _SIZES[kind]
        else:
            raise ValueError(f"a field of type {kind}")

    def _skip_array(self) -> int:
        """Steps over an array; its length."""
        kind, length = self._take("<IQ")
        if kind in _SIZES:
            self._at += _SIZES[kind] * length
        else:
            for _ in range(length):
                self._skip(kind)
        return int(length)

    def _string(self) -> str:
        (length,) = self._take("<Q")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _take(self, layout: str) -> tuple[int, ...]:
        if self._at + struct.calcsize(layout) > len(self._data):
            raise ValueError("it ends inside")
        found: tuple[int, ...] = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return found
