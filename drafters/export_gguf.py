"""A drafter checkpoint as the GGUF file that llama.cpp loads beside its target.

    python -m drafters.export_gguf CHECKPOINT TARGET.gguf [OUT.gguf] [--dtype float16]

CHECKPOINT is a folder with config.json and safetensors: EAGLE-3, DFlash, DFlash 2 or DSpark. TARGET.gguf is the file that will
be served; the drafter takes its vocabulary from it. OUT is CHECKPOINT.gguf, beside the folder, unless given: there rigs look,
and export by themselves what is not there or is of another training. Matrices are stored in --dtype, everything else in
float32. llama.cpp multiplies float16 matrices by activations rounded to float16 too; float32 keeps its drafts equal to the
reference engine's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from drafters.checkpoint import checkpoint_hash
from drafters.drafter_checkpoint import read_drafter_config
from drafters.gguf_drafter import TargetShape, describe
from drafters.gguf_write import Tensor, fields_of, write_gguf
from drafters.weights import Weights

SOURCE = "samerig.source"  # the field that says which weights a file was made from
_DTYPES = ("float32", "float16")


def export(checkpoint: Path, target: Path, out: Path, dtype: str) -> None:
    """Write `out`. ValueError or FileNotFoundError, one line, where the checkpoint or the target does not serve."""
    reader = gguf.GGUFReader(target)
    config = read_drafter_config(checkpoint)
    file = describe(config, target_shape(reader, target))
    _check_vocabulary(config, reader, target)
    published = dict(_published(checkpoint))
    named = [(name, _stored(name, tensor, dtype)) for name, tensor in file.tensors(published)]
    made_of = {"general.name": f"{checkpoint.name} drafter", SOURCE: checkpoint_hash(checkpoint)}
    fields = {**made_of, **file.fields}
    write_gguf(out, file.arch, fields, fields_of(reader, "tokenizer.ggml."), named)


def check(checkpoint: Path, target: TargetShape) -> None:
    """Raises ValueError or FileNotFoundError, one line, where llama.cpp has no place for the drafter. Reads headers only."""
    describe(read_drafter_config(checkpoint), target).check(Weights(checkpoint, torch.float32, torch.device("cpu")).names())


def target_shape(reader: Any, path: Path) -> TargetShape:
    arch = reader.fields["general.architecture"].contents()
    sizes = [reader.fields.get(f"{arch}.{key}") for key in ("block_count", "embedding_length")]
    if None in sizes:
        raise ValueError(f"{path}: no {arch}.block_count or {arch}.embedding_length; give the target's own GGUF file")
    layers, hidden = (int(field.contents()) for field in sizes if field is not None)
    return TargetShape(layers, hidden)


def _check_vocabulary(config: dict[str, Any], reader: Any, path: Path) -> None:
    tokens = reader.fields["tokenizer.ggml.tokens"]
    if (have := len(tokens.data)) != config.get("vocab_size"):
        raise ValueError(f"{path} has {have} tokens, the drafter {config.get('vocab_size')}: it was made for another target")


def _published(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    weights = Weights(checkpoint, torch.float32, torch.device("cpu"))
    for name in sorted(weights.names()):
        yield name, weights[name].numpy()


def _stored(name: str, tensor: Tensor, dtype: str) -> Tensor:
    """Matrices that are multiplied, in `dtype`; norms, biases and convolution kernels, which are added, in float32."""
    if tensor.dtype.kind == "i":
        return tensor
    return tensor.astype(dtype if tensor.ndim == 2 and name.endswith(".weight") else np.float32)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m drafters.export_gguf", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--dtype", choices=_DTYPES, default="float16")
    args = parser.parse_args(arguments)
    out = args.out or args.checkpoint.with_name(f"{args.checkpoint.name}.gguf")
    try:
        export(args.checkpoint, args.target, out, args.dtype)
    except (ValueError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
