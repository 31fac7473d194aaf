"""Any OpenAI-compatible server: attached by URL or launched by a command of the rig. What cannot be read is null.

This is how servers without an adapter of their own are benched (trtllm-serve, ollama, oMLX, TabbyAPI). `engine.flags` of
`rigs/engine/openai.yaml` say what the server understands. A plain and a speculating arm are two servers: two URLs, or the base
command and the words that `arms.*.options.command` adds to it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.config import Arm, Run
from harness.engines.base import Counters, Launched, Memory, Request, Scalar
from harness.engines.server import ServerEngine
from harness.engines.server_completions import CompletionsReader
from harness.engines.server_dialect import Found, Reader, Startup, target_folder
from harness.engines.server_metrics import Families, total

# Counters by the end of their names: engines put their own name and a colon before it.
_COUNTERS = {
    "requests": ("request_success_total",),
    "verify_steps": ("spec_decode_num_drafts_total",),
    "drafted": ("spec_decode_num_draft_tokens_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
    "output_tokens": ("generation_tokens_total", "tokens_predicted_total"),
    "preemptions": ("num_preemptions_total",),
}


@dataclass(frozen=True)
class OpenAI:
    """The dialect, as far as the flags of a rig describe a server."""

    health: str
    metrics: str | None
    flush: tuple[str, str] | None
    endpoint_words: tuple[str, ...]
    decode: Callable[[Sequence[int]], str] | None = None  # for servers that take text; null sends ids
    name: str = "openai"
    identity: str = "/v1/models"
    info: tuple[str, ...] = ()
    generate: str = "/v1/completions"

    def model(self, run: Run, build: bool) -> str:
        needed = "{model}" in (_text(run, "command") or "")
        return str((target_folder(run, build) if needed else None) or f"<{run.target.name}>")

    def command(self, run: Run, model: str) -> list[str]:
        return [word.replace("{model}", model) for word in shlex.split(_text(run, "command") or "")]

    def endpoint(self, port: int, name: str) -> list[str]:
        return [word.replace("{port}", str(port)).replace("{name}", name) for word in self.endpoint_words]

    def speculation(self, run: Run, arm: Arm) -> list[str]:
        words = shlex.split(str(arm.options.get("command") or ""))
        return [word.replace("{budget}", str(arm.draft_budget)) for word in words]

    def env(self, run: Run) -> dict[str, str]:
        return {}

    def missing(self, run: Run, arm: Arm) -> list[str]:
        gaps = []
        url, command = _url(run, arm), _text(run, "command")
        if (url is None) == (command is None):
            gaps.append("engine: give either engine.flags.command (a server to launch) or engine.url (one that runs)")
        if command and not shutil.which(shlex.split(command)[0]):
            gaps.append(f"engine.flags.command: '{shlex.split(command)[0]}' is no program on this machine; give its path")
        if command and arm.draft_budget and not arm.options.get("command"):
            gaps.append("arms.*.options.command: empty, so this arm would be plain; give the words that turn its drafter on")
        if run.engine.prefix_cache and self.flush is None:
            gaps.append("engine.flags.flush: null, so the prefix cache stays warm between cells; give the path that empties it")
        others = [name for name in arm.engine_flags or {} if name != "command"]
        gaps += [f"engine_flags.{name}: no words of this server; give command, its whole base command" for name in others]
        gaps += [f"options.url: arm '{other}' is attached to the same server" for other in _sharing(run, arm, url)]
        return gaps

    def pinned(self, run: Run) -> dict[str, Scalar]:
        return {}

    def estimate(self, run: Run, arm: Arm) -> Memory:
        return Memory(source={"weights_bytes": "unknown: the server is not ours"})

    def body(self, run: Run, request: Request, served: str) -> dict[str, Any]:
        sampler = request.sampler
        body: dict[str, Any] = {
            "model": served,
            "prompt": self.decode(request.prompt_ids) if self.decode else list(request.prompt_ids),
            "max_tokens": request.max_tokens,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "seed": sampler.seed,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "n": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | (_extensions(run, request) if run.engine.flags.get("extensions") else {})

    def reader(self, run: Run, arm: Arm, request: Request) -> Reader:
        return CompletionsReader(request)

    def counters(self, families: Families) -> Counters:
        found = {name: [total(families, full) for full in families if full.endswith(ends)] for name, ends in _COUNTERS.items()}
        return Counters(**{name: values[0] for name, values in found.items() if len(values) == 1})

    def resolved(self, run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
        """Nothing of a foreign server can be read: a null per factor that a comparison would want, and never a guess."""
        names = (
            "engine_build",
            "kv_tokens",
            "max_running_requests",
            "prefix_cache",
            "attention_backend",
            "draft_budget",
            "method",
        )
        return dict.fromkeys(names)

    def versions(self, found: Found) -> dict[str, str]:
        return {}

    def startup(self, found: Found) -> Startup:
        return Startup()

    def memory(self, run: Run, arm: Arm, found: Found) -> Memory:
        return Memory(source={"weights_bytes": "not readable through this API"})


class OpenAIEngine(ServerEngine):
    """Speaks what `engine.flags` say that the server understands."""

    @classmethod
    def speak(cls, run: Run) -> OpenAI:
        flush, endpoint = _text(run, "flush"), _text(run, "endpoint")
        return OpenAI(
            health=_text(run, "health") or "/v1/models",
            metrics=_text(run, "metrics"),
            flush=("POST", flush) if flush else None,
            endpoint_words=tuple(shlex.split(endpoint or "")),
        )

    async def launch(self) -> Launched:
        if _text(self._run, "prompt") == "text":
            from harness.rendering import load_tokenizer  # takes seconds, and few servers need it

            decode = load_tokenizer(self.tokenizer_folder(self._run)).decode
            self.dialect = replace(self.speak(self._run), decode=decode)
        return await super().launch()

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(_text(self._run, "api-key-env") or "")
        return {"Authorization": f"Bearer {key}"} if key else {}


def _text(run: Run, flag: str) -> str | None:
    value = run.engine.flags.get(flag)
    return None if value is None else str(value)


def _url(run: Run, arm: Arm) -> str | None:
    url = arm.options.get("url") or run.engine.url
    return None if url is None else str(url)


def _sharing(run: Run, arm: Arm, url: str | None) -> list[str]:
    """Arms that differ from this one and would be measured on the same server: the same bytes under two names."""
    if url is None:
        return []
    return [name for name, other in run.arms.items() if other.method != arm.method and _url(run, other) == url]


def _extensions(run: Run, request: Request) -> dict[str, Any]:
    """Parameters beside OpenAI's own that vLLM, SGLang, llama.cpp and trtllm-serve share."""
    return {
        "top_k": request.sampler.top_k or run.engine.flags.get("top-k-off"),
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": request.ignore_eos,
        "stop_token_ids": [] if request.ignore_eos else list(request.stop_ids),
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
