"""What a DFlash checkpoint says about itself: the keys of its `config.json`, read once, checked once.

Keys of the family live at the top level in older checkpoints and inside `dflash_config` in newer ones; both are read, the inner
one first. A key that would change the arithmetic in a way that is not implemented is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from drafters.drafter_checkpoint import check_taps, size_of, taps_from_layer_inputs

_UNSUPPORTED = ("attention_sink_bias", "attention_value_scale", "projector_type", "use_swa")
_DEFAULT_BLOCK = 16  # the reference implementation's, for configs that do not say


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """Sizes and rules of one checkpoint. `causal` and `windows` hold one entry per draft layer, a window of None is unbounded.

    `block` counts the anchor. `taps` are numbers of target layers whose output is read, 0-based. `rope` is the raw config: what
    `drafters.layers.inverse_frequencies` reads.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    block: int
    mask_token: int
    taps: tuple[int, ...]
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    sample_from_anchor: bool
    embedding_scale: float
    output_multiplier: float
    softcap: float
    rope: Mapping[str, Any]

    @property
    def drafts(self) -> int:
        return most_drafts(self.block, self.sample_from_anchor)

    @classmethod
    def read(cls, raw: Mapping[str, Any], target_layers: int, anchor_first: bool = False, projector: str | None = None) -> Self:
        """From a flat config (`read_drafter_config`). Raises ValueError that names the key.

        `anchor_first` is the family's own rule for `sample_from_anchor`, where the config states none. `projector` is the
        `projector_type` that the reader implements.
        """
        _refuse_unsupported(raw, projector)
        hidden, layers, heads = (size_of(raw, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        return cls(
            hidden=hidden,
            intermediate=size_of(raw, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=size_of(raw, "num_key_value_heads", heads),
            head_dim=size_of(raw, "head_dim", hidden // heads),
            eps=float(raw.get("rms_norm_eps", 1e-6)),
            bias=bool(raw.get("attention_bias", False)),
            block=family_size(raw, "block_size", _DEFAULT_BLOCK),
            mask_token=_mask_token(raw),
            taps=_taps(raw, target_layers, layers),
            causal=_causal(raw, layers),
            windows=_windows(raw, layers),
            sample_from_anchor=bool(value_of(raw, "sample_from_anchor", anchor_first)),
            embedding_scale=float(value_of(raw, "input_embedding_scale", 1.0)),
            output_multiplier=float(value_of(raw, "output_multiplier", 1.0)),
            softcap=float(value_of(raw, "final_logit_softcapping", 0.0)),
            rope=raw,
        )


def value_of(raw: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """A key of the family, from `dflash_config` if it is there, else from the top level; null is as good as absent."""
    for place in (raw.get("dflash_config") or {}, raw):
        if (value := place.get(key)) is not None:
            return value
    return default


def family_size(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number of at least 1 under `value_of`; a null default makes it required."""
    return size_of({key: value_of(raw, key)}, key, default)


def most_drafts(block: int, sample_from_anchor: bool) -> int:
    """Of a block of the trained size: one per slot, none from the anchor's where that predicts nothing."""
    return block if sample_from_anchor else block - 1


def check_budget(drafts: int, block: int, most: int) -> None:
    """ValueError for more drafts than a block of `block` slots was trained to give."""
    if drafts > most:
        raise ValueError(
            f"draft_budget: {drafts} drafts asked of a block trained for {most} "
            f"(block_size {block}); set draft_budget to {most} or less"
        )


def default_taps(target_layers: int, count: int) -> tuple[int, ...]:
    """The layers that a drafter reads when its config names none: evenly spread from the second to the fourth from the end."""
    if count == 1:
        return (target_layers // 2,)
    if target_layers < 4:
        raise ValueError(f"config.json: target_layer_ids is missing and has no default for a target of {target_layers} layers")
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def _refuse_unsupported(raw: Mapping[str, Any], projector: str | None) -> None:
    for key in _UNSUPPORTED:
        if (value := value_of(raw, key)) and not (key == "projector_type" and value == projector):
            raise ValueError(f"config.json: '{key}' is not implemented; use a checkpoint without it")


def _mask_token(raw: Mapping[str, Any]) -> int:
    value = value_of(raw, "mask_token_id")
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"config.json: mask_token_id is {value!r} and must be the id of the token that fills the block")
    return value


def _taps(raw: Mapping[str, Any], target_layers: int, layers: int) -> tuple[int, ...]:
    """Published `target_layer_ids` are numbers of layer outputs; the ids of the speculators format count layer inputs."""
    if (inputs := raw.get("aux_hidden_state_layer_ids")) is not None:
        key, taps = "aux_hidden_state_layer_ids", taps_from_layer_inputs(inputs)
    else:
        key, ids = "target_layer_ids", value_of(raw, "target_layer_ids")
        taps = default_taps(target_layers, layers) if ids is None else tuple(ids)
    check_taps(taps, target_layers, f"config.json: {key}")
    return taps


def _causal(raw: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Whether block rows see only earlier block rows: `is_causal`, else `dflash_config.causal`, else what the layer type says.

    By layer type, sliding layers are causal unless `sliding_window_non_causal`, and full layers are not: the legacy rule.
    """
    for stated in (raw.get("is_causal"), (raw.get("dflash_config") or {}).get("causal")):
        if stated is not None:
            return (bool(stated),) * layers
    sliding_is_causal = not raw.get("sliding_window_non_causal", False)
    return tuple(kind == "sliding_attention" and sliding_is_causal for kind in _kinds(raw, layers))


def _windows(raw: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """The window of each sliding layer: a query sees a key fewer than this many positions away, itself included."""
    kinds = _kinds(raw, layers)
    if "sliding_attention" in kinds and raw.get("use_sliding_window") is False:
        raise ValueError("config.json: layer_types has sliding_attention but use_sliding_window is false; state which holds")
    return tuple(size_of(raw, "sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def _kinds(raw: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    kinds = tuple(raw.get("layer_types") or ("full_attention",) * layers)
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"config.json: layer_types {kinds} must name full_attention or sliding_attention once per layer ({layers})"
        )
    return kinds
