"""A GGUF file with every tensor in float32: the numbers that the reference engine computes with, for llama.cpp.

    python -m drafters.gguf_float32 SOURCE.gguf OUT.gguf

llama.cpp multiplies quantised weights by activations that it quantises to 8 bits; from this file it computes in float32, as the
reference engine does with the same weights dequantised. What then still differs between the two engines is their drafting.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from drafters.gguf_write import Tensor, fields_of, write_gguf


def dequantise(source: Path, out: Path) -> None:
    """Write `out`: four bytes a parameter, and that much memory. Fields are kept, but for the name of the quantisation."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    write_gguf(out, arch, {"general.file_type": int(gguf.LlamaFileType.ALL_F32)}, fields_of(reader), _tensors(reader))


def _tensors(reader: Any) -> Iterator[tuple[str, Tensor]]:
    for tensor in reader.tensors:
        yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
