"""Serves llama.cpp from the PyPI package xllamacpp under the flags of `llama-server`, for machines without that binary.

Run by path, in any interpreter that has the package: `python llama_cpp_server.py --model FILE --port N ...`. It knows the flags
that the adapter uses and refuses every other one, so that nothing asked for is dropped. Ends at SIGTERM. Imports nothing of
this repository.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import xllamacpp

_SPEC, _FLASH = "COMMON_SPECULATIVE_TYPE_", "LLAMA_FLASH_ATTN_TYPE_"
_CACHE_TYPES = {name: getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}") for name in ("f32", "f16", "bf16", "q8_0")}
_FLASHES = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}

# Flag, attribute path below CommonParams (several take the same value), conversion.
_VALUES: tuple[tuple[str, tuple[str, ...], Callable[[str], Any]], ...] = (
    ("model", ("model.path",), str),
    ("port", ("port",), int),
    ("ctx-size", ("n_ctx",), int),
    ("parallel", ("n_parallel",), int),
    ("threads", ("cpuparams.n_threads", "speculative.draft.cpuparams.n_threads"), int),
    ("threads-batch", ("cpuparams_batch.n_threads", "speculative.draft.cpuparams_batch.n_threads"), int),
    ("batch-size", ("n_batch",), int),
    ("ubatch-size", ("n_ubatch",), int),
    ("cache-type-k", ("cache_type_k",), _CACHE_TYPES.__getitem__),
    ("cache-type-v", ("cache_type_v",), _CACHE_TYPES.__getitem__),
    ("cache-ram", ("cache_ram_mib",), int),
    ("ctx-checkpoints", ("n_ctx_checkpoints",), int),
    ("n-gpu-layers", ("n_gpu_layers",), int),
    ("verbosity", ("verbosity",), int),
    ("slot-save-path", ("slot_save_path",), str),
    ("flash-attn", ("flash_attn_type",), lambda word: getattr(xllamacpp.llama_flash_attn_type, _FLASH + _FLASHES[word])),
    ("fit", ("fit_params",), {"on": True, "off": False}.__getitem__),
    ("spec-draft-model", ("speculative.draft.mparams.path",), str),
    ("spec-draft-n-max", ("speculative.draft.n_max",), int),
    ("spec-draft-n-min", ("speculative.draft.n_min",), int),
    ("spec-draft-p-min", ("speculative.draft.p_min",), float),
    ("spec-draft-ngl", ("speculative.draft.n_gpu_layers",), int),
    ("spec-draft-type-k", ("speculative.draft.cache_type_k",), _CACHE_TYPES.__getitem__),
    ("spec-draft-type-v", ("speculative.draft.cache_type_v",), _CACHE_TYPES.__getitem__),
    ("spec-ngram-simple-size-n", ("speculative.ngram_simple.size_n",), int),
    ("spec-ngram-simple-size-m", ("speculative.ngram_simple.size_m",), int),
    ("spec-ngram-simple-min-hits", ("speculative.ngram_simple.min_hits",), int),
)
_SWITCHES: tuple[tuple[str, str, bool], ...] = (
    ("metrics", "endpoint_metrics", True),
    ("slots", "endpoint_slots", True),
    ("no-ui", "ui", False),
    ("no-context-shift", "ctx_shift", False),
    ("no-kv-unified", "kv_unified", False),
    ("no-cache-idle-slots", "cache_idle_slots", False),
)


def spec_types() -> list[str]:
    """Names as `--spec-type` spells them."""
    names = [name.removeprefix(_SPEC) for name in dir(xllamacpp.common_speculative_type) if name.startswith(_SPEC)]
    return sorted(name.lower().replace("_", "-") for name in names if name != "COUNT")


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="llama-server out of the package xllamacpp", allow_abbrev=False)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--alias", default="")
    flags.add_argument("--device", choices=["none"], help="none: CPU only")
    flags.add_argument("--spec-type", default="none", help=",".join(spec_types()))
    for name, _, convert in _VALUES:
        flags.add_argument(f"--{name}", type=convert)
    for name, _, _ in _SWITCHES:
        flags.add_argument(f"--{name}", action="store_true")
    return flags


def parameters(args: argparse.Namespace) -> Any:
    """CommonParams with what the flags say and the library's own defaults elsewhere."""
    params = xllamacpp.CommonParams()
    params.hostnames, params.model_alias = [args.host], {args.alias} if args.alias else set()
    for name, paths, _ in _VALUES:
        if (value := getattr(args, name.replace("-", "_"))) is not None:
            for path in paths:
                _assign(params, path, value)
    for name, path, value in _SWITCHES:
        if getattr(args, name.replace("-", "_")):
            _assign(params, path, value)
    kind = _SPEC + args.spec_type.upper().replace("-", "_")
    params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    return params


def _assign(params: Any, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        params = getattr(params, parent)
    if not hasattr(params, name):
        raise AttributeError(f"this version of xllamacpp has no parameter {path}")
    setattr(params, name, value)


def main(argv: list[str]) -> int:
    server = xllamacpp.Server(parameters(parser().parse_args(argv)))
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    print(f"listening at {server.listening_address}", flush=True)
    while not stopped:
        signal.pause()
    os._exit(0)  # the library's own shutdown waits for requests that nobody reads any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
