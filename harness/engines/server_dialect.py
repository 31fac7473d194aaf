"""What an adapter of a served engine supplies: pure functions, tested on recorded bytes. I/O and clocks are in `server.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.config import Arm, Run
from harness.engines.base import Chunk, Counters, Memory, Request, Scalar
from harness.engines.server_metrics import Families

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Found:
    """What a ready server told: JSON by path (a path that did not answer 200 is absent), its metrics, log and command."""

    info: Mapping[str, Any] = field(default_factory=dict)
    families: Families = field(default_factory=dict)
    log: str = ""
    argv: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds of a launch as the log tells them; null where it does not."""

    load_s: float | None = None
    graph_capture_s: float | None = None


class Reader(Protocol):
    """Turns the events of one request into chunks. It may hold chunks back, for they carry their own arrival times.

    `end` is called once when the stream ends properly; a last chunk with `finish` (and `told`) may come from either.
    """

    def read(self, arrived_ns: int, event: Mapping[str, Any]) -> list[Chunk]: ...

    def end(self) -> list[Chunk]: ...


class Dialect(Protocol):
    """One engine's language. The properties may be plain class attributes. Only `model` does I/O worth the name: it may build
    or download when `build` is true.

    `health` answers 200 when the server is ready. `identity` lists models in OpenAI's form and must contain the name that
    `endpoint` was given. `info` are JSON documents for `Found`. `metrics` is null without a Prometheus endpoint.
    `flush` is (method, path) that empties the prefix cache, or null where the body or a flag keeps it cold.
    """

    @property
    def name(self) -> str: ...
    @property
    def health(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def info(self) -> tuple[str, ...]: ...
    @property
    def metrics(self) -> str | None: ...
    @property
    def generate(self) -> str: ...
    @property
    def flush(self) -> tuple[str, str] | None: ...

    def model(self, run: Run, build: bool) -> str:
        """What is served: path of a folder or file, or a name in angle brackets while it is not here and may not be built."""
        ...

    def command(self, run: Run, model: str) -> list[str]:
        """The base command, program first. It never sees the arm, so nothing in it can differ between arms."""
        ...

    def endpoint(self, port: int, name: str) -> list[str]:
        """Flags for address, port and the name under which the model is served: a nonce that proves whose server answers."""
        ...

    def speculation(self, run: Run, arm: Arm) -> list[str]:
        """What the arm adds to the base command, its budget translated; nothing for plain where that is the default."""
        ...

    def env(self, run: Run) -> dict[str, str]:
        """Environment that the engine needs, equal for every arm; the rig's own `engine.env` is laid over it."""
        ...

    def missing(self, run: Run, arm: Arm) -> list[str]:
        """What this machine or this engine version lacks for the arm, a line each: what, where, what to do."""
        ...

    def pinned(self, run: Run) -> dict[str, Scalar]:
        """Factors that the rig holds, by canonical name (`harness/control/factors.yaml`)."""
        ...

    def estimate(self, run: Run, arm: Arm) -> Memory:
        """Bytes before launch; null where unknown."""
        ...

    def body(self, run: Run, request: Request, served: str) -> dict[str, Any]:
        """The JSON of one streaming request to the model served under this name. States every sampling parameter, so that no
        default of the server is left."""
        ...

    def reader(self, run: Run, arm: Arm, request: Request) -> Reader: ...

    def counters(self, families: Families) -> Counters: ...

    def resolved(self, run: Run, arm: Arm, found: Found) -> dict[str, Scalar]:
        """What the engine says it runs with, by canonical factor name; null where it does not tell. `method` is in the words of
        `Arm.method` (`plain` where nothing drafts), `draft_budget` counts drafts: liveness compares both with the arm."""
        ...

    def versions(self, found: Found) -> dict[str, str]: ...

    def startup(self, found: Found) -> Startup: ...

    def memory(self, run: Run, arm: Arm, found: Found) -> Memory: ...


def target_folder(run: Run, build: bool) -> Path | None:
    """The target's Hugging Face folder; null if it is not here and `build` is false."""
    from harness.engines import reference_files  # imports torch, which a plan of a served engine can do without

    return reference_files.target_folder(run, build)


def target_gap(run: Run) -> str | None:
    """What is wrong with a packaged target or a folder on this disk, or null. A hub target may be fetched later."""
    from harness.engines import reference_files

    return None if run.target.source == "hub" else reference_files.target_problem(run)


def checkpoint_path(arm: Arm) -> str | None:
    """Where the arm's drafter is: an absolute path if it is a file or folder here, else its hub name; null without one."""
    if arm.checkpoint is None:
        return None
    for base in (Path.cwd(), ROOT):
        if (found := base / arm.checkpoint.location).exists():
            return str(found.resolve())
    return arm.checkpoint.location


def flag_list(flags: Mapping[str, Scalar]) -> list[str]:
    """`engine.flags` as command-line words: `name: value` is `--name value`, true is `--name`, false and null are left out."""
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", str(value)]
    return words
