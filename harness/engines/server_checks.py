"""What a command line must not contain: acceptance that is made up instead of measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from harness.config import Arm, Run

# Flags of llama.cpp, fields of vLLM's speculative config, variables of SGLang and TensorRT-LLM.
_WORDS = ("spec-synth", "synthetic_acceptance", '"synthetic"', "'synthetic'")
_VARIABLES = ("SGLANG_SIMULATE_ACC", "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED", "FORCE_NUM_ACCEPTED_TOKENS")


def simulated_acceptance(run: Run, arm: Arm, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Lines for flags or variables that make the engine simulate acceptance, unless the arm is declared `synthetic`.

    A server that is launched also inherits what the caller's shell exports; one that is attached to tells neither.
    """
    if arm.method == "synthetic":
        return []
    launched = (run.engine.url or arm.options.get("url")) is None
    found = [word for word in argv if any(mark in word.replace(" ", "") for mark in _WORDS)]
    found += [name for name in {**(os.environ if launched else {}), **env} if name.startswith(_VARIABLES)]
    return [f"engine: '{name}' simulates acceptance; remove it, or give the arm method: synthetic" for name in found]
