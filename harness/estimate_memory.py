"""Does it fit? Bytes of a serving before it is launched, from checkpoint headers and config, or from sizes stated in the rig.

An estimate, never shown as measured: weights are exact where the headers are on this disk, KV and recurrent state follow from
the architecture, and what the driver, activations and graphs take is the rig's `machine.reserved_bytes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Run, Size
from harness.engines.base import Memory

_KV_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class Needs:
    """What one checkpoint takes. KV is at 2 bytes per value; null is unknown, and `source` says where the rest came from."""

    weights_bytes: int | None
    kv_bytes_per_token: int | None
    state_bytes_per_request: int | None
    source: str


NOTHING = Needs(0, 0, 0, "the arm has no drafter weights")
UNKNOWN = Needs(None, None, None, "unknown: neither its files are here nor does the rig state its size")


def needs_of(folder: Path | None, stated: Size | None) -> Needs:
    """Headers and config of a checkpoint folder (or GGUF file) where it is here, else the size that the rig states."""
    if folder is not None and folder.is_dir() and (found := _of_folder(folder)):
        return found
    if stated is not None:
        sizes = (stated.weights_bytes, stated.kv_bytes_per_token, stated.state_bytes_per_request)
        return Needs(*sizes, "stated in the rig")
    if folder is not None and folder.is_file():
        return Needs(folder.stat().st_size, None, None, "size of the file; KV per token unknown: state it in the rig")
    return UNKNOWN


def plan_memory(
    run: Run, target: Needs, drafter: Needs, states: int, draft_states: int, pool_bytes: int | None = None
) -> Memory:
    """Bytes of one arm at the rig's KV capacity; `drafter` is NOTHING for an arm without weights.

    `states` recurrent states of the target are kept for all requests together, `draft_states` more because of the drafter:
    a rejected draft has to be undone, and engines keep a state per verified row for that. With `pool_bytes` the engine takes
    so much for KV and states together, and the KV tokens are what the states leave of it.
    """
    scale = _KV_BYTES[run.target.dtype if run.engine.kv_dtype == "auto" else run.engine.kv_dtype] / 2
    per_token, draft_per_token = rates = tuple(_scaled(n.kv_bytes_per_token, scale) for n in (target, drafter))
    kept, undo = (_product(target.state_bytes_per_request, n) for n in (states, draft_states))
    tokens = run.engine.kv_tokens if pool_bytes is None else _left(pool_bytes, (kept, undo), rates)
    draft_kv = _product(draft_per_token, tokens)
    weights = (target.weights_bytes, drafter.weights_bytes)
    amount = "unknown" if tokens is None else f"{tokens} tokens"
    amount += "" if pool_bytes is None else f", what the states leave of {pool_bytes} bytes"
    return Memory(
        weights_bytes=target.weights_bytes,
        drafter_weights_bytes=drafter.weights_bytes,
        kv_bytes=_product(per_token, tokens),
        kv_tokens=tokens,
        draft_state_bytes=None if draft_kv is None or undo is None else draft_kv + undo,
        recurrent_state_bytes=kept,
        kv_room_tokens=_room(run, (*weights, kept, undo), rates),
        source={
            "weights_bytes": target.source,
            "drafter_weights_bytes": drafter.source,
            "kv_bytes": f"estimate: {amount}; {target.source}",
            "draft_state_bytes": f"estimate: KV of the drafter's layers for {amount}, {draft_states} recurrent states",
            "recurrent_state_bytes": f"estimate: {states} states of the target's recurrent layers",
        },
    )


def _room(run: Run, fixed: tuple[int | None, ...], per_token: tuple[float | None, ...]) -> int | None:
    """Tokens of KV, target's and drafter's, in what the fixed parts leave of all GPUs; negative when those are too big.

    Null without the machine's memory, a size, or any KV at all.
    """
    machine = run.machine
    if machine.memory_bytes is None:
        return None
    return _left((machine.memory_bytes - (machine.reserved_bytes or 0)) * max(1, machine.gpu_count), fixed, per_token)


def _left(whole: int, fixed: tuple[int | None, ...], per_token: tuple[float | None, ...]) -> int | None:
    """Tokens in what the fixed parts leave of the whole; null without a size, or any KV at all."""
    known, rates = [f for f in fixed if f is not None], [p for p in per_token if p is not None]
    if len(known) < len(fixed) or len(rates) < len(per_token) or not sum(rates):
        return None
    return int((whole - sum(known)) // sum(rates))


def _scaled(value: int | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _product(value: float | None, count: int | None) -> int | None:
    return None if value is None or count is None else int(value * count)


def _of_folder(folder: Path) -> Needs | None:
    """Null for a folder without a config or without weights."""
    config_file, files = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config_file.is_file() or not files:
        return None
    config: dict[str, Any] = json.loads(config_file.read_text("utf-8"))
    weights = sum(size for file in files for size in tensor_bytes(file))
    text = config.get("text_config", config)
    return Needs(weights, kv_bytes_per_token(text), state_bytes_per_request(text), "headers and config of the checkpoint")


def tensor_bytes(file: Path) -> Iterator[int]:
    """Bytes of every tensor of a safetensors file, from its header (an 8-byte length, then JSON); no weight is read."""
    for entry in _entries(file):
        start, end = entry["data_offsets"]
        yield end - start


def _entries(file: Path) -> Iterator[Mapping[str, Any]]:
    """`dtype`, `shape` and `data_offsets` of every tensor."""
    with file.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    yield from (entry for name, entry in header.items() if name != "__metadata__")


def served_bytes(folder: Path, float_bytes: int) -> int | None:
    """Bytes of a folder's tensors once loaded with floats of so many bytes each; null without safetensors files.

    Integers and packed weights stay as they are stored.
    """
    files = sorted(folder.glob("*.safetensors"))
    return sum(_served(entry, float_bytes) for file in files for entry in _entries(file)) if files else None


def _served(entry: Mapping[str, Any], float_bytes: int) -> int:
    start, end = entry["data_offsets"]
    stored: int = end - start
    return math.prod(entry["shape"]) * float_bytes if entry["dtype"] in ("F64", "F32", "F16", "BF16") else stored


def kv_bytes_per_token(text: Mapping[str, Any]) -> int:
    """Keys and values of every attention layer at 2 bytes per value; recurrent layers keep no per-token cache."""
    heads = int(text["num_attention_heads"])
    kinds = text.get("layer_types") or ["full_attention"] * int(text["num_hidden_layers"])
    layers = sum(kind != "linear_attention" for kind in kinds)
    head_dim = int(text.get("head_dim") or text["hidden_size"] // heads)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    return int(2 * 2 * layers * kv_heads * head_dim)


def state_bytes_per_request(text: Mapping[str, Any]) -> int:
    """Gated-delta-net layers (Qwen3-Next, 3.5, 3.8): a float32 matrix per value head and a bfloat16 convolution window."""
    layers = sum(kind == "linear_attention" for kind in text.get("layer_types") or ())
    if not layers:
        return 0
    keys, values = int(text["linear_num_key_heads"]), int(text["linear_num_value_heads"])
    key_dim, value_dim = int(text["linear_key_head_dim"]), int(text["linear_value_head_dim"])
    window = (int(text["linear_conv_kernel_dim"]) - 1) * (2 * keys * key_dim + values * value_dim)
    return int(layers * (4 * values * key_dim * value_dim + 2 * window))
