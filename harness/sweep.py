"""Several jobs through Hydra's multirun, so that a configured launcher (Ray, Slurm) takes them to other machines.

A job is a rig with its overrides; Hydra sweeps over the numbers of the jobs. So jobs of several rigs are one sweep, and each is
composed where it is measured. Words that begin with `hydra` say how jobs are launched; all others belong to the jobs.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from harness.cli import bench_and_report, one_line
from harness.compose import compose_run
from harness.durable import replace_text
from harness.folders import new_folder, require_folder
from harness.plan import plan_run, require_nothing_missing
from harness.rigs import RIGS

JOBS = "jobs.json"
OUTCOME = "outcome.json"


@dataclass(frozen=True, slots=True)
class Job:
    """One run to measure. `name` tells it from the others of its sweep."""

    rig: str
    overrides: tuple[str, ...]
    name: str


def run_jobs(jobs: Sequence[Job], words: Sequence[str], results: Path, fresh: bool) -> int:
    """Run every job, then list them. A failed job does not stop the others; returns 1 if any failed, else 0.

    `words` are Hydra's own overrides. Its files (the list of jobs, a launcher's logs, one outcome per job) go to
    `results/.sweeps/<time>/`.
    """
    results = results.resolve()
    folder = _sweep_folder(results, jobs)
    numbered = tuple(jobs)  # a launcher carries this to where the job runs

    def job(config: DictConfig) -> None:
        run_job(numbered[config.job], results, folder, fresh)

    numbers = ",".join(map(str, range(len(jobs))))
    entry = hydra.main(version_base="1.3", config_path=str(RIGS), config_name=None)(job)
    # A launcher that fails has said so; the outcomes of its jobs follow.
    with suppress(SystemExit), matched_schemas():
        _with_argv(["samerig", "--multirun", *quiet(folder, words), *words, f"+job={numbers}"], entry)
    return print_outcomes(folder, jobs, Console(highlight=False))


def _sweep_folder(results: Path, jobs: Sequence[Job]) -> Path:
    """A folder of this sweep alone with the list of its jobs, which also shows whoever runs one that the folder is shared."""
    require_folder(results / ".sweeps")
    folder = new_folder(results / ".sweeps", f"{datetime.now():%Y%m%d-%H%M%S-%f}")
    listed = [{"rig": job.rig, "overrides": list(job.overrides)} for job in jobs]
    replace_text(json.dumps(listed, indent=1) + "\n", folder / JOBS)
    return folder


def quiet(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Hydra kept out of the working directory and silent, where the command line does not say otherwise."""
    wanted = {
        "hydra.sweep.dir": f'"{folder}"',
        "hydra.sweep.subdir": "${hydra.job.num}",
        "hydra.output_subdir": "null",
        "hydra.job.chdir": "false",
        "hydra.job.name": "samerig",
        "hydra/job_logging": "disabled",
        "hydra/hydra_logging": "disabled",
    }
    said = {word.split("=")[0].lstrip("+~") for word in overrides}
    return [f"{key}={value}" for key, value in wanted.items() if key not in said]


@contextmanager
def matched_schemas() -> Iterator[None]:
    """Our launchers have the names of the plugins' schemas on purpose, to be judged by them; Hydra warns at every look."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")
        yield


def _with_argv(argv: list[str], entry: Callable[[], None]) -> None:
    """Hydra's entry point reads the process's arguments."""
    before = sys.argv
    sys.argv = argv
    try:
        entry()
    finally:
        sys.argv = before


def run_job(job: Job, results: Path, sweep: Path, fresh: bool) -> None:
    """One job, here or where a launcher put it. Its outcome is a file: launchers return nothing.

    Raises ValueError where the results folder is not the one of the machine that launched it.
    """
    if not (sweep / JOBS).is_file():
        raise ValueError(f"{results}: is not shared with the machine that launched the sweep; name a shared --results folder")
    outcome: dict[str, str | None] = {"folder": None, "error": None}
    print(_place(job, sweep), file=sys.stderr, flush=True)
    try:
        composed = compose_run(job.rig, job.overrides)
        require_nothing_missing(plan_run(composed, results))
        outcome["folder"] = str(bench_and_report(composed, results, fresh))
    except (ValueError, RuntimeError, OSError) as error:
        outcome["error"] = one_line(error)
        print(f"error: job {job.name}: {outcome['error']}", file=sys.stderr)
    replace_text(json.dumps(outcome), Path(HydraConfig.get().runtime.output_dir, OUTCOME))


def _place(job: Job, sweep: Path) -> str:
    """Which of its sweep a job is, for the line above its progress."""
    count = len(json.loads((sweep / JOBS).read_text("utf-8")))
    return f"job {HydraConfig.get().job.num + 1} of {count}: {job.name}"


def print_outcomes(folder: Path, jobs: Sequence[Job], console: Console) -> int:
    """One line for each job; 1 if any failed or left no outcome."""
    console.print(f"\n[bold]sweep[/]: {len(jobs)} jobs")
    failed = False
    for number, job in enumerate(jobs):
        file = folder / str(number) / OUTCOME
        outcome = json.loads(file.read_text("utf-8")) if file.is_file() else {"error": f"left no outcome; see {folder}"}
        told = f"failed: {outcome['error']}" if outcome["error"] else outcome["folder"]
        console.print(f"  {job.name}  {told}", markup=False, soft_wrap=True)
        failed |= bool(outcome["error"])
    return int(failed)
