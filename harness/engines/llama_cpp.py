"""llama.cpp: a `llama-server` binary, or the same server out of the package xllamacpp, run by path in its own process.

Its native `/completion` route takes and gives token ids and, per token, running totals of drafts. What the server resolved is
in its log (sizes, drafter), in /props and in the command line, which holds every default that speculation would move.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import psutil
from huggingface_hub import snapshot_download

from harness.config import Arm, Run
from harness.engines.base import Counters, EngineError, Memory, Request, Scalar
from harness.engines.llama_cpp_drafter import drafter_path, export_if_due
from harness.engines.llama_cpp_found import found_memory, load_seconds, log_method, word_after
from harness.engines.llama_cpp_plan import (
    KV_TYPES,
    METHODS,
    SERVER,
    estimate,
    gguf_path,
    missing,
    pin_problem,
    program,
)
from harness.engines.llama_cpp_stream import LlamaReader
from harness.engines.server import ServerEngine
from harness.engines.server_dialect import Found, Reader, Startup, flag_list
from harness.engines.server_metrics import Families, total
from harness.fetch import TOKENIZER_FILES
from harness.held import slot_tokens


class LlamaCpp:
    """The dialect."""

    name = "llama_cpp"
    health = "/health"
    identity = "/v1/models"
    info = ("/props", "/slots")
    metrics = "/metrics"
    generate = "/completion"
    flush = None  # slot by slot, by the engine below; with the cache off every request says that it may use none

    def model(self, run: Run, build: bool) -> str:
        """The target's file. The pin is of the package's own: a file that the rig names instead is identified by its hash."""
        path = gguf_path(run)
        if build and (problem := pin_problem(run, path)):
            raise ValueError(problem)
        return str(path)

    def command(self, run: Run, model: str) -> list[str]:
        engine, kv_type = run.engine, KV_TYPES.get(run.engine.kv_dtype, run.engine.kv_dtype)
        threads = str(run.machine.threads or psutil.cpu_count(logical=False) or 1)
        argv = [*program(run), "--model", model, "--ctx-size", str(slot_tokens(run) * engine.max_running_requests)]
        argv += ["--parallel", str(engine.max_running_requests), "--threads", threads, "--threads-batch", threads]
        argv += ["--ubatch-size", str(engine.prefill_chunk), "--cache-type-k", kv_type, "--cache-type-v", kv_type]
        argv += ["--device", "none"] if run.machine.kind == "cpu" else ["--n-gpu-layers", "999"]
        argv += ["--slot-save-path", tempfile.gettempdir()] if engine.prefix_cache else []
        flags = {name: value for name, value in engine.flags.items() if name != "gguf"}
        return [*argv, *flag_list(flags), "--metrics", "--slots"]

    def endpoint(self, port: int, name: str) -> list[str]:
        return ["--host", "127.0.0.1", "--port", str(port), "--alias", name]

    def speculation(self, run: Run, arm: Arm) -> list[str]:
        """Unset, llama.cpp picks a drafter by itself from what lies beside the model; so plain says `none`.

        n-max counts drafts, as our budget does. p-min 0 and n-min 0: neither a doubtful nor a short draft is held back.
        """
        argv, budget = ["--spec-type", METHODS.get(arm.method, arm.method)], str(arm.draft_budget)
        if arm.method == "plain":
            return argv
        if arm.method == "ngram":
            size = str(arm.options.get("max_n") or 3)
            argv += ["--spec-ngram-simple-size-n", size, "--spec-ngram-simple-size-m", budget]
            return [*argv, "--spec-ngram-simple-min-hits", "1", "--spec-draft-n-max", budget]
        if (draft := drafter_path(arm)) is not None:
            argv += ["--spec-draft-model", draft]
        argv += ["--spec-draft-n-max", budget, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
        kv_type = KV_TYPES.get(run.engine.kv_dtype, run.engine.kv_dtype)
        argv += ["--spec-draft-type-k", kv_type, "--spec-draft-type-v", kv_type]
        return [*argv, *(["--spec-draft-ngl", "999"] if run.machine.kind == "cuda" else [])]

    def env(self, run: Run) -> dict[str, str]:
        return {"GGML_CUDA_DISABLE_GRAPHS": "1"} if run.machine.kind == "cuda" and run.engine.graphs == "off" else {}

    def missing(self, run: Run, arm: Arm) -> list[str]:
        return missing(run, arm)

    def pinned(self, run: Run) -> dict[str, Scalar]:
        return {
            "context_limit": slot_tokens(run),
            "kv_tokens": slot_tokens(run) * run.engine.max_running_requests,
            "kv_dtype": KV_TYPES.get(run.engine.kv_dtype),
            "max_running_requests": run.engine.max_running_requests,
            "max_batched_tokens": run.engine.flags.get("batch-size"),
            "prefill_chunk": run.engine.prefill_chunk,
            "prefix_cache": run.engine.prefix_cache,
            "attention_backend": f"flash-attn {run.engine.flags.get('flash-attn')}",
        }

    def estimate(self, run: Run, arm: Arm) -> Memory:
        return estimate(run, arm)

    def body(self, run: Run, request: Request, served: str) -> dict[str, Any]:
        """Greedy needs no other sampler; above 0 the order is vLLM's and ours: temperature first, then top-k and top-p."""
        sampler = request.sampler
        return {
            "prompt": list(request.prompt_ids),
            "n_predict": request.max_tokens,
            "temperature": sampler.temperature,
            "top_k": sampler.top_k,
            "top_p": sampler.top_p,
            "seed": sampler.seed,
            "samplers": ["temperature", "top_k", "top_p"],
            **_NEUTRAL,
            "ignore_eos": request.ignore_eos,
            "cache_prompt": run.engine.prefix_cache,
            "stream": True,
            "return_tokens": True,
            "timings_per_token": True,
        }

    def reader(self, run: Run, arm: Arm, request: Request) -> Reader:
        return LlamaReader(request, arm.draft_budget)

    def counters(self, families: Families) -> Counters:
        """A slot is never taken from a running request, so there are no preemptions."""
        return Counters(
            verify_steps=total(families, "llamacpp:spec_decode_num_drafts_total"),
            drafted=total(families, "llamacpp:spec_decode_num_draft_tokens_total"),
            accepted=total(families, "llamacpp:spec_decode_num_accepted_tokens_total"),
            output_tokens=total(families, "llamacpp:tokens_predicted_total"),
            prefill_tokens=total(families, "llamacpp:prompt_tokens_total"),
            cached_tokens=total(families, "llamacpp:prompt_tokens_cached_total"),
            preemptions=0,
        )

    def resolved(self, run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
        props, argv = found.info.get("/props", {}), found.argv
        slots, context = props.get("total_slots"), props.get("default_generation_settings", {}).get("n_ctx")
        method, budget = log_method(found.log)
        return {
            "engine_build": props.get("build_info"),
            "device": "cpu" if word_after(argv, "--device") == "none" else "cuda",
            "threads": _number(argv, "--threads"),
            "target_hash": _identity(props.get("model_path")),
            "dtype": props.get("model_ftype"),
            "quantization": props.get("model_ftype"),
            "context_limit": context,
            "kv_tokens": context * slots if context and slots else None,
            "kv_dtype": word_after(argv, "--cache-type-k"),
            "memory_fraction": f"fit {word_after(argv, '--fit')}",
            "tensor_parallel": 1 if word_after(argv, "--device") == "none" else word_after(argv, "--split-mode"),
            "prefix_cache": run.engine.prefix_cache,
            "max_running_requests": slots,
            "max_batched_tokens": _number(argv, "--batch-size"),
            "prefill_chunk": _number(argv, "--ubatch-size"),
            "attention_backend": f"flash-attn {word_after(argv, '--flash-attn')}",
            "method": next((ours for ours, theirs in METHODS.items() if theirs == method), method),
            "draft_budget": budget,
            "draft_checkpoint_hash": _identity(word_after(argv, "--spec-draft-model")),
            "draft_kv_dtype": word_after(argv, "--spec-draft-type-k"),
            "draft_memory": "request",
            "engine_seed": props.get("default_generation_settings", {}).get("params", {}).get("seed"),
            "synthetic_acceptance": any(word.startswith("--spec-synth") for word in argv),
        }

    def versions(self, found: Found) -> dict[str, str]:
        build = {"llama.cpp": str(found.info.get("/props", {}).get("build_info", "unknown"))}
        return build | ({"xllamacpp": distribution("xllamacpp").version} if _is_ours(found.argv) else {})

    def startup(self, found: Found) -> Startup:
        return Startup(load_s=load_seconds(found.log))

    def memory(self, run: Run, arm: Arm, found: Found) -> Memory:
        return found_memory(found, arm)


class LlamaCppEngine(ServerEngine):
    """A GGUF holds no chat template that we render with: tokenizer files come from the target's own folder or repository."""

    dialect = LlamaCpp()

    @classmethod
    def tokenizer_folder(cls, run: Run) -> Path:
        if run.target.source != "hub":
            return super().tokenizer_folder(run)
        return Path(snapshot_download(run.target.location, revision=run.target.revision, allow_patterns=TOKENIZER_FILES))

    async def _prepare(self) -> None:
        await export_if_due(self._arm, gguf_path(self._run))

    async def _flush(self) -> None:
        """Each slot holds its last prompt for whoever begins like it. Only a server that could save slots erases them."""
        for slot in range(self._run.engine.max_running_requests):
            status, text = await self._get(f"/slots/{slot}?action=erase", "POST", 60.0)
            if status != 200:
                raise EngineError(f"llama_cpp: slot {slot} was not erased: {status} {text[:200]!r}")


# Every sampler of the server that is not asked for, switched off by name: its defaults are no neutral ones.
_NEUTRAL: Mapping[str, Any] = {
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "n_probs": 0,
    "n_keep": 0,
}


def _number(argv: Sequence[str], flag: str) -> int | None:
    word = word_after(argv, flag)
    return None if word is None else int(word)


def _is_ours(argv: Sequence[str]) -> bool:
    return str(SERVER) in argv and argv[0] == sys.executable


@cache
def _identity(path: str | None) -> str | None:
    """sha256 over a file's size, its first and its last 4 MiB: a GGUF's metadata is at its beginning."""
    if path is None or not Path(path).is_file():
        return None
    size, part = Path(path).stat().st_size, 4 << 20
    with Path(path).open("rb") as stream:
        head = stream.read(part)
        stream.seek(max(0, size - part))
        return hashlib.sha256(str(size).encode() + head + stream.read(part)).hexdigest()
