"""What a drafter's checkpoint says of itself, against its target and its arm: does its vocabulary fit, is it the arm's method?

A drafter of another target drafts tokens that mean something else, and one without DFlash 2's selector is served as DFlash:
both run, and only accept less. The reference engine refuses them while it loads; for served engines they are looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Arm, Run
from harness.engines.gguf_header import read_header
from harness.engines.method_support import family
from harness.engines.server_dialect import checkpoint_path, target_folder

PADDING = 128  # rows by which models of one tokenizer may differ: embeddings are padded to whole blocks
DFLASH2 = ("DFlash2DraftModel", "DFlash2BeamDraftModel")
# GGUF knows one architecture `dflash`; what it is, llama.cpp tells by the tensors that are there.
_TENSORS = {"selector_hidden.weight": "DFlash2DraftModel", "markov_w1.weight": "Qwen3DSparkModel"}
_NESTED = ("text_config", "transformer_layer_config")


@dataclass(frozen=True, slots=True)
class Described:
    """Architecture by its Hugging Face name, and tokens of the vocabulary; null where the files do not tell."""

    architecture: str | None = None
    tokens: int | None = None


def described(place: Path | None) -> Described:
    """From the config of a folder, or the header of a GGUF file. What is not here or cannot be read tells nothing."""
    if place is None:
        return Described()
    try:
        return _gguf(place) if place.is_file() else _config(json.loads((place / "config.json").read_text("utf-8")))
    except (OSError, ValueError):
        return Described()


def drafter_folder(arm: Arm) -> Path | None:
    """The drafter's folder or file on this disk: as the rig states it, or in the hub's cache; null where it is in neither."""
    place = checkpoint_path(arm)
    if arm.checkpoint is None or place is None:
        return None
    if Path(place).exists():
        return Path(place)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(place, "config.json", revision=arm.checkpoint.revision)
    except HFValidationError:  # a path that is not here is no name of a repository
        return None
    return Path(found).parent if isinstance(found, str) else None


def drafter_gaps(run: Run, arm: Arm) -> list[str]:
    """`gaps_between` the arm's drafter and the target, as engines take them: folders of Hugging Face's form."""
    return gaps_between(arm, drafter_folder(arm), target_folder(run, build=False)) if arm.checkpoint else []


def gaps_between(arm: Arm, drafter: Path | None, target: Path | None) -> list[str]:
    """Why this checkpoint cannot be the arm's drafter, a line each; what is not on this disk is no gap."""
    ours, theirs, gaps = described(drafter), described(target), []
    if ours.tokens is not None and theirs.tokens is not None and abs(ours.tokens - theirs.tokens) > PADDING:
        gaps.append(
            f"arm {arm.label}: {drafter} has a vocabulary of {ours.tokens} tokens, the target one of {theirs.tokens}; "
            "give a drafter that was made for this target"
        )
    if family(arm) == "dflash2" and ours.architecture and ours.architecture not in DFLASH2:
        gaps.append(
            f"arm {arm.label}: {drafter} is a {ours.architecture} and would draft as dflash, without a selector; "
            "give a DFlash 2"
        )
    return gaps


def other_drafter(arm: Arm, served: str | None) -> list[str]:
    """A line if the drafter that a server names is not the arm's. By name, for one checkpoint lies elsewhere on each machine:
    the last part of the arm's path or repository must be a part of the server's (`models--ORG--NAME` in the hub's cache)."""
    if arm.checkpoint is None or not served:
        return []
    asked = Path(arm.checkpoint.location).name
    if asked.lower() in {part.lower() for word in Path(served).parts for part in word.split("--")}:
        return []
    return [f"drafter: '{arm.checkpoint.location}' was asked for, the server has loaded '{served}'"]


def _gguf(file: Path) -> Described:
    header = read_header(file)
    architecture = "DFlashDraftModel" if header.architecture == "dflash" else header.architecture
    return Described(next((name for tensor, name in _TENSORS.items() if tensor in header.tensors), architecture), header.tokens)


def _config(config: Mapping[str, Any]) -> Described:
    names = config.get("architectures") or [None]
    nested = [config[name] for name in _NESTED if isinstance(config.get(name), dict)]
    tokens = next((found for part in (config, *nested) if isinstance(found := part.get("vocab_size"), int)), None)
    return Described(names[0], tokens)
