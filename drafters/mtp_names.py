"""The published names of MTP tensors, by family, as a map from this project's names (DeepSeek's, without a prefix).

| family                     | module prefix            | embedding norm, state norm, projection, last norm           |
|----------------------------|--------------------------|-------------------------------------------------------------|
| DeepSeek, GLM, own folders | `model.layers.{L+j}.`    | `enorm`, `hnorm`, `eh_proj`, `shared_head.norm`             |
| Qwen3-Next, 3.5, 3.6, 3.8  | `mtp.`, layer `layers.0` | `pre_fc_norm_embedding`, `pre_fc_norm_hidden`, `fc`, `norm` |
| MiMo                       | `model.mtp_layers.{j}.`  | `token_layernorm`, `hidden_layernorm`, `input_proj`,        |
|                            |                          | `final_layernorm`                                           |
| speculators                | `mtp_layers.0.`          | as MiMo, but the embedding is first in the projection       |

Norms of Qwen3-Next and later scale by 1 + w, by their own names and in the speculators format alike.

Only dense layers of ordinary grouped attention are implemented; experts and latent attention are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drafters.drafter_checkpoint import DrafterWeights

_QWEN = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "shared_head.norm": "norm"}
_MIMO = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "shared_head.norm": "final_layernorm",
}
_ADD_ONE = ("qwen3_next", "qwen3_5")  # how the `model_type` of layers begins whose norms scale by 1 + w
_REFUSED = {
    r"mlp\.(experts|gate|router|shared_expert)\b.*": "a mixture of experts",
    r"self_attn\.(kv_a_proj_with_mqa|q_a_proj|kv_b_proj)\b.*": "latent attention",
}


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Where one module is. `prefix` precedes everything of it, `layer` everything of its decoder layer."""

    prefix: str
    layer: str
    renamed: dict[str, str] = field(default_factory=dict)
    norms_add_one: bool = False
    state_first: bool = False

    def published(self, name: str) -> str:
        """The checkpoint's name of a parameter of `mtp.MtpNetwork`."""
        stem, _, ending = name.rpartition(".")
        if stem in ("enorm", "hnorm", "eh_proj", "shared_head.norm"):
            return f"{self.prefix}{self.renamed.get(stem, stem)}.{ending}"
        return self.layer + name


def find_names(weights: DrafterWeights, config: Mapping[str, Any]) -> list[MtpNames]:
    """The modules that a folder holds, in order. ValueError when there is none, or its layer is not implemented.

    `config` is its `config.json`, which tells the speculators format from MiMo's: their names are the same.
    """
    found = (
        [MtpNames(at, at) for at in _prefixes(weights, "eh_proj")]
        or [MtpNames(at, f"{at}layers.0.", _QWEN, norms_add_one=True) for at in _prefixes(weights, "pre_fc_norm_hidden")]
        or [_by_input_proj(at, config) for at in _prefixes(weights, "input_proj")]
    )
    if not found:
        raise ValueError(f"{weights.folder}: no tensor 'eh_proj.weight', 'mtp.fc.weight' or 'input_proj.weight'; {_NO_MODULE}")
    for names in found:
        _refuse(weights, names.layer)
    return found


def _by_input_proj(at: str, config: Mapping[str, Any]) -> MtpNames:
    if "speculators_model_type" not in config:
        return MtpNames(at, at, _MIMO, state_first=True)
    layer = str((config.get("transformer_layer_config") or {}).get("model_type"))
    return MtpNames(at, at, _MIMO, norms_add_one=layer.startswith(_ADD_ONE))


def left_alone(weights: DrafterWeights, used: Sequence[MtpNames], unused: Sequence[MtpNames]) -> list[str]:
    """Patterns of names that may stay unread: copies of the target's table and head, modules not asked for, and, where the
    folder is the target's own checkpoint, the target."""
    patterns = [re.escape(names.prefix) + r"(embed_tokens|shared_head\.head|lm_head)\.weight" for names in used]
    patterns += [re.escape(names.prefix) + ".*" for names in unused]
    patterns.append(r"verifier_lm_head\.weight")  # a converter of speculators saves it, empty
    if any(re.fullmatch(r"(.*\.)?embed_tokens\.weight", name) for name in weights.names):
        prefixes = "|".join(re.escape(names.prefix) for names in used)
        patterns.append(f"(?!{prefixes}).*" if all(names.prefix for names in used) else r"embed_tokens\.weight")
    return patterns


def _prefixes(weights: DrafterWeights, stem: str) -> list[str]:
    """What precedes `stem.weight` wherever it occurs, by module number."""
    matches = [re.fullmatch(rf"((?:.*\.)?){stem}\.weight", name) for name in weights.names]
    return sorted((m[1] for m in matches if m), key=lambda at: ([int(n) for n in re.findall(r"\d+", at)], at))


def _refuse(weights: DrafterWeights, layer: str) -> None:
    for pattern, what in _REFUSED.items():
        names = sorted(name for name in weights.names if re.fullmatch(re.escape(layer) + pattern, name))
        if names:
            raise ValueError(f"{weights.folder}: tensor '{names[0]}' is part of {what}; only dense MTP layers are implemented")


_NO_MODULE = "this checkpoint has no MTP module"
