"""SGLang, served from an environment of its own: `engine.interpreter` is the path of that environment's Python.

Token ids go in and come out over SGLang's own route `/generate`, whose last event tells the request's verifications. The pure
functions are in `sglang_command`, `sglang_missing`, `sglang_stream` and `sglang_readback`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.config import Arm, Run
from harness.engines import sglang_command, sglang_readback, sglang_stream
from harness.engines.base import Counters, Memory, Request, Scalar
from harness.engines.drafter_files import drafter_gaps
from harness.engines.server import ServerEngine
from harness.engines.server_dialect import Found, Reader, Startup, checkpoint_path, target_folder
from harness.engines.server_metrics import Families
from harness.engines.sglang_missing import missing
from harness.estimate_memory import NOTHING, Needs, needs_of, plan_memory


class SGLang:
    """The dialect of `server_dialect.Dialect`."""

    name = "sglang"
    health = "/health"
    identity = "/v1/models"
    info = (sglang_readback.INFO,)
    metrics = "/metrics"
    generate = "/generate"
    flush = ("POST", "/flush_cache")

    def model(self, run: Run, build: bool) -> str:
        folder = target_folder(run, build)
        return str(folder) if folder else f"<{run.target.location}>"

    def command(self, run: Run, model: str) -> list[str]:
        return sglang_command.command(run, model)

    def endpoint(self, port: int, name: str) -> list[str]:
        return ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", name]

    def speculation(self, run: Run, arm: Arm) -> list[str]:
        return sglang_command.speculation(run, arm)

    def env(self, run: Run) -> dict[str, str]:
        return {}

    def missing(self, run: Run, arm: Arm) -> list[str]:
        return missing(run, arm)

    def pinned(self, run: Run) -> dict[str, Scalar]:
        return sglang_command.pinned(run)

    def estimate(self, run: Run, arm: Arm) -> Memory:
        """A recurrent layer keeps a state per request, with a drafter one per verified row; the pool holds one request more."""
        target, requests = needs_of(target_folder(run, build=False), run.target.size), run.engine.max_running_requests
        undo = 0 if arm.draft_budget is None else (requests + 1) * (arm.draft_budget + 1)
        return plan_memory(run, target, drafter_needs(arm), requests + 1, undo)

    def body(self, run: Run, request: Request, served: str) -> dict[str, Any]:
        return sglang_stream.body(request)

    def reader(self, run: Run, arm: Arm, request: Request) -> Reader:
        return sglang_stream.GenerateReader(request, arm.draft_budget or 0)

    def counters(self, families: Families) -> Counters:
        return sglang_stream.counters(families)

    def resolved(self, run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
        return sglang_readback.resolved(run, arm, found)

    def versions(self, found: Found) -> dict[str, str]:
        return sglang_readback.versions(found)

    def startup(self, found: Found) -> Startup:
        return sglang_readback.startup(found)

    def memory(self, run: Run, arm: Arm, found: Found) -> Memory:
        return sglang_readback.memory(arm, found, drafter_needs(arm).weights_bytes)


def drafter_needs(arm: Arm) -> Needs:
    """Bytes of the arm's drafter: nothing for an arm without a checkpoint (MTP's weights are inside the target's)."""
    if arm.checkpoint is None:
        return NOTHING
    place = checkpoint_path(arm)
    return needs_of(Path(place) if place and Path(place).exists() else None, arm.checkpoint.size)


class SGLangEngine(ServerEngine):
    """SGLang behind the engine contract. Its n-gram drafter remembers earlier answers, so that arm is flushed in any case."""

    dialect = SGLang()

    def problems(self) -> list[str]:
        """By its own words, and by the drafter's files: they may have been fetched during the launch."""
        return [*sglang_readback.problems(self._run, self._arm, self._found), *drafter_gaps(self._run, self._arm)]

    async def flush(self) -> None:
        await (self._flush() if self._arm.method == "ngram" else super().flush())
