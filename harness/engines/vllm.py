"""vLLM, served by `vllm serve` from an environment of its own: `engine.interpreter` is the path of that environment's Python.

Token ids go in and come out over `/v1/completions`. The server runs in dev mode, which tells its resolved configuration and
lets the prefix cache be emptied. The pure functions are in `vllm_command`, `vllm_missing`, `vllm_stream`, `vllm_readback`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.config import Arm, Run
from harness.engines import vllm_command, vllm_readback, vllm_stream
from harness.engines.base import Counters, Memory, Request, Scalar
from harness.engines.drafter_files import drafter_gaps
from harness.engines.server import ServerEngine
from harness.engines.server_completions import CompletionsReader
from harness.engines.server_dialect import Found, Reader, Startup, checkpoint_path, target_folder
from harness.engines.server_metrics import Families
from harness.engines.vllm_missing import missing, pool_gaps
from harness.estimate_memory import NOTHING, Needs, needs_of, plan_memory


class Vllm:
    """The dialect of `server_dialect.Dialect`."""

    name = "vllm"
    health = "/health"
    identity = "/v1/models"
    info = (vllm_readback.INFO, vllm_readback.VERSION)
    metrics = "/metrics"
    generate = "/v1/completions"
    flush = ("POST", "/reset_prefix_cache")

    def model(self, run: Run, build: bool) -> str:
        folder = target_folder(run, build)
        return str(folder) if folder else f"<{run.target.location}>"

    def command(self, run: Run, model: str) -> list[str]:
        return vllm_command.command(run, model)

    def endpoint(self, port: int, name: str) -> list[str]:
        return ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", name]

    def speculation(self, run: Run, arm: Arm) -> list[str]:
        return vllm_command.speculation(run, arm)

    def env(self, run: Run) -> dict[str, str]:
        return {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}

    def missing(self, run: Run, arm: Arm) -> list[str]:
        return [*missing(run, arm), *pool_gaps(run, arm, self.estimate(run, arm))]

    def pinned(self, run: Run) -> dict[str, Scalar]:
        return vllm_command.pinned(run)

    def estimate(self, run: Run, arm: Arm) -> Memory:
        """A recurrent layer keeps one state per request, and one more per draft to go back to; a pool in bytes holds both."""
        target, requests = needs_of(target_folder(run, build=False), run.target.size), run.engine.max_running_requests
        undo = requests * (arm.draft_budget or 0)
        return plan_memory(run, target, drafter_needs(arm), requests, undo, vllm_command.pool_bytes(run))

    def body(self, run: Run, request: Request, served: str) -> dict[str, Any]:
        return vllm_stream.body(request, served)

    def reader(self, run: Run, arm: Arm, request: Request) -> Reader:
        return CompletionsReader(request, vllm_stream.SpeculationTeller())

    def counters(self, families: Families) -> Counters:
        return vllm_stream.counters(families)

    def resolved(self, run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
        return vllm_readback.resolved(run, arm, found)

    def versions(self, found: Found) -> dict[str, str]:
        return vllm_readback.versions(found)

    def startup(self, found: Found) -> Startup:
        return vllm_readback.startup(found)

    def memory(self, run: Run, arm: Arm, found: Found) -> Memory:
        return vllm_readback.memory(arm, found, drafter_needs(arm).weights_bytes)


def drafter_needs(arm: Arm) -> Needs:
    """Bytes of the arm's drafter: nothing for an arm without a checkpoint (MTP's weights are inside the target's)."""
    if arm.checkpoint is None:
        return NOTHING
    place = checkpoint_path(arm)
    return needs_of(Path(place) if place and Path(place).exists() else None, arm.checkpoint.size)


class VllmEngine(ServerEngine):
    """vLLM behind the engine contract."""

    dialect = Vllm()

    def problems(self) -> list[str]:
        """By its own words, and by the drafter's files: they may have been fetched during the launch."""
        return [*vllm_readback.problems(self._run, self._arm, self._found), *drafter_gaps(self._run, self._arm)]
