"""Several jobs through Hydra's own multirun, so that a configured launcher plugin (ray, submitit) takes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from harness.cli import bench_and_report, one_line
from harness.compose import judge, lists_for_concurrency
from harness.rigs import find_rig

OUTCOME = "outcome.json"


def run_jobs(rig: str, overrides: Sequence[str], results: Path, fresh: bool) -> int:
    """Run every job of a sweep, then list them. A failed job does not stop the others; returns 1 if any failed, else 0.

    Hydra's own files (the sweep's description, a launcher's logs, one outcome per job) go to `results/.sweeps/<time>/`.
    """
    file, folder, results = find_rig(rig), _sweep_folder(results), results.resolve()

    def job(config: DictConfig) -> None:
        run_job(config, rig, results, fresh)

    words = [*quiet(folder, overrides), *file.overrides(), *lists_for_concurrency(overrides)]
    entry = hydra.main(version_base="1.3", config_path=str(file.folder), config_name=file.name)(job)
    _with_argv(["samerig", "--multirun", *words], entry)
    return print_outcomes(folder, Console(highlight=False))


def _sweep_folder(results: Path) -> Path:
    folder = results.resolve() / ".sweeps" / f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    return folder


def quiet(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Hydra kept out of the working directory and silent, where the command line does not say otherwise."""
    wanted = {
        "hydra.sweep.dir": f'"{folder}"',
        "hydra.sweep.subdir": "${hydra.job.num}",
        "hydra.output_subdir": "null",
        "hydra.job.chdir": "false",
        "hydra/job_logging": "disabled",
        "hydra/hydra_logging": "disabled",
    }
    said = {word.split("=")[0].lstrip("+~") for word in overrides}
    return [f"{key}={value}" for key, value in wanted.items() if key not in said]


def _with_argv(argv: list[str], entry: Callable[[], None]) -> None:
    """Hydra's entry point reads the process's arguments."""
    before = sys.argv
    sys.argv = argv
    try:
        entry()
    finally:
        sys.argv = before


def run_job(config: DictConfig, rig: str, results: Path, fresh: bool) -> None:
    """One job, here or where a launcher put it. Its outcome is a file: launchers return nothing."""
    overrides = list(HydraConfig.get().overrides.task)
    outcome: dict[str, object] = {"overrides": overrides, "folder": None, "error": None}
    try:
        outcome["folder"] = str(bench_and_report(judge(config, rig, overrides), results, fresh))
    except (ValueError, RuntimeError, OSError) as error:
        outcome["error"] = one_line(error)
        print(f"error: job {' '.join(overrides)}: {outcome['error']}", file=sys.stderr)
    Path(HydraConfig.get().runtime.output_dir, OUTCOME).write_text(json.dumps(outcome), "utf-8")


def print_outcomes(folder: Path, console: Console) -> int:
    """One line for each job; 1 if any failed or said nothing."""
    found = sorted(folder.glob(f"*/{OUTCOME}"), key=lambda path: int(path.parent.name))
    outcomes = [json.loads(path.read_text("utf-8")) for path in found]
    console.print(f"\n[bold]sweep[/]: {len(outcomes)} jobs")
    for outcome in outcomes:
        told = outcome["folder"] or f"failed: {outcome['error']}"
        console.print(f"  {' '.join(outcome['overrides'])}  {told}", markup=False, soft_wrap=True)
    return int(not outcomes or any(outcome["error"] for outcome in outcomes))
