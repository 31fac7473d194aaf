"""From a command line to the jobs of a sweep, and to what launches them; no job is started here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from harness.compose import ConfigError, compose_run, expand_sweep
from harness.plan import plan_run, require_nothing_missing
from harness.sweep import Job

# Launchers with a configuration in rigs/hydra/launcher/: the module of the plugin, and the extra that brings it.
PLUGINS = {
    "ray": ("hydra_plugins.hydra_ray_launcher", "ray"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
}


def is_of_hydra(word: str) -> bool:
    """Whether an override says how jobs are launched, and nothing of what is measured."""
    return word.lstrip("+~").startswith(("hydra/", "hydra."))


def launcher_of(words: Sequence[str]) -> str | None:
    """The launcher that the overrides name; null for jobs one after another in this process.

    Raises ConfigError with the extra that brings it, where it is not installed.
    """
    names = [word.partition("=")[2] for word in words if word.partition("=")[0].lstrip("+") == "hydra/launcher"]
    name = names[-1] if names and names[-1] != "basic" else None
    module, extra = PLUGINS.get(str(name), (None, None))
    if module is not None and not _is_installed(module):
        raise ConfigError(f"hydra/launcher: '{name}' is not installed; pip install -e '.[{extra}]'")
    return name


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def jobs_of(rigs: Sequence[str], overrides: Sequence[str]) -> Iterator[Job]:
    """The jobs of these rigs, each swept over the same overrides. Raises ConfigError."""
    for rig in rigs:
        for job in expand_sweep(rig, overrides):
            yield Job(_path(rig), tuple(job), " ".join([*([rig] if len(rigs) > 1 else []), *job]))


def _path(rig: str) -> str:
    """A rig file by its whole path: where the job runs, the working directory may be another."""
    return str(Path(rig).resolve()) if rig.endswith(".yaml") else rig


def require_sound(jobs: Sequence[Job], results: Path, here: bool) -> None:
    """Compose every job before the first one starts and, if they run `here`, check that this machine has what they need.

    Raises ConfigError that names the job.
    """
    for job in jobs:
        try:
            composed = compose_run(job.rig, job.overrides)
            if here:
                require_nothing_missing(plan_run(composed, results))
        except ConfigError as error:
            raise ConfigError(f"job {job.name}: {error}") from None
