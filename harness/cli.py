"""The command line: `samerig COMMAND`. Help is instant: nothing heavy is imported until a command runs."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from harness.audit import cli as audit_cli
from harness.cli_examples import BENCH_EXAMPLES, DOCTOR_EXAMPLES, PLAN_EXAMPLES, REPORT_EXAMPLES, RIGS_EXAMPLES, TOP, TRACEBACK
from harness.cli_published import add_commands

if TYPE_CHECKING:
    from harness.compose import ComposedRun

RESULTS = Path("results")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 something is missing or a job failed, 2 an error, 130 interrupted.

    141 where who read the output went away (`samerig report | head`), in silence as other programs of the shell do.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        _require_no_file(args)
        code: int = args.command(args)
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped; complete cells are kept, the same command resumes", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes there at the exit
            return 141
        if os.environ.get(TRACEBACK):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return code


def _require_no_file(args: argparse.Namespace) -> None:
    """Raises ValueError where --results names a file: no command can find a run in it or make one there."""
    results: Path | None = getattr(args, "results", None)
    if results is not None and results.exists() and not results.is_dir():
        raise ValueError(f"--results {results}: is a file; name a folder, which bench makes where there is none")


def _reader_left() -> bool:
    """Whether it is our own output that nobody reads any more, not the pipe of an engine."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def one_line(error: BaseException) -> str:
    """An error's text on one line; its type when it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments; overrides may stand on both sides of options."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if strange := [word for word in rest if word.startswith("-") or not hasattr(args, "overrides")]:
        parser.error(f"unknown argument {strange[0]}; see samerig {argv[0]} --help")
    if rest:
        args.overrides += rest
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="samerig",
        description="A controlled comparison of speculative-decoding drafters: same rig, one variable.",
        epilog=TOP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    bench = _command(commands, "bench", "measure a rig: all arms, plain included, take turns in every block", BENCH_EXAMPLES)
    _add_rig(bench)
    bench.add_argument(
        "-m", "--multirun", action="store_true", help="sweep: a comma list of rigs or in an override makes one job each"
    )
    bench.add_argument("--fresh", action="store_true", help="start a new run even if an unfinished one could be resumed")
    bench.set_defaults(command=_bench)
    plan = _command(commands, "plan", "say what bench would run and what is missing here; run nothing", PLAN_EXAMPLES)
    _add_rig(plan)
    plan.set_defaults(command=_plan)
    doctor = _command(commands, "doctor", "check machine, driver, engine, checkpoints and memory for a rig", DOCTOR_EXAMPLES)
    _add_rig(doctor)
    doctor.set_defaults(command=_doctor)
    _command(commands, "rigs", "list the rigs", RIGS_EXAMPLES).set_defaults(command=_rigs)
    report = _command(commands, "report", "print the table of a run", REPORT_EXAMPLES)
    report.add_argument(
        "run", nargs="*", metavar="RUN", help="folder of a run, or its name in the results folder (default: the newest)"
    )
    form = report.add_mutually_exclusive_group()
    for name, text in (("html", "write report.html into the run"), ("csv", "every number"), ("markdown", "Markdown tables")):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, default="table", help=text)
    form.add_argument("--figure", type=Path, metavar="FILE", help="write the speedup figure of one run")
    report.add_argument("--allow-confounded", action="store_true", help="print speedups of confounded pairs too, struck")
    _add_results(report)
    report.set_defaults(command=_report)
    add_commands(lambda name, text, examples: _command(commands, name, text, examples))
    audit = _command(commands, "audit", "say what else moved between two rigs, runs or launch commands", audit_cli.EXAMPLES)
    audit_cli.add_arguments(audit)
    _add_results(audit)
    audit.set_defaults(command=lambda args: audit_cli.run(args, console()))
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, examples: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, help=text, description=text, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_rig(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rig", metavar="RIG", help="name of a rig (samerig rigs), or the path of a rig file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the rig")
    _add_results(parser)


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="results folder (default: results)")


def console() -> Console:
    """The terminal as it is; 120 columns where there is none (a pipe, a log), unless COLUMNS says otherwise."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=120 if piped else None)


def _rigs(args: argparse.Namespace) -> int:
    from harness.rigs import list_published, list_rigs

    rigs = list_rigs() + list_published()
    width = max((len(name) for name, _ in rigs), default=0)
    for name, summary in rigs:
        print(f"{name:<{width}}  {summary}")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from harness.compose import compose_run
    from harness.plan import plan_run, print_plan

    plan = plan_run(compose_run(args.rig, args.overrides), args.results)
    print_plan(plan, console())
    return 1 if plan.missing else 0


def _doctor(args: argparse.Namespace) -> int:
    from harness.compose import compose_run
    from harness.doctor import checks, print_checks
    from harness.plan import plan_run

    return print_checks(checks(plan_run(compose_run(args.rig, args.overrides), args.results)), console())


def _report(args: argparse.Namespace) -> int:
    from harness.report.command import show

    folders = [_run_folder(run, args.results) for run in args.run] or [_newest(args.results)]
    code: int = show(folders, console(), args.form, args.figure, args.allow_confounded)
    return code


def _newest(results: Path) -> Path:
    from harness.run_file import SAMPLE

    runs = [path.parent for path in results.glob("*/run.json")]
    if not runs:
        where = f"no run in {results}/ yet ({results.resolve()})"
        samples = sorted(path.parent for path in (results / SAMPLE).glob("*/run.json"))
        sample = f"; one that came with the sources is shown with: samerig report {samples[0]}" if samples else ""
        raise ValueError(f"{where}; name another folder with --results, or measure one with: samerig bench RIG{sample}")
    return max(runs, key=lambda folder: (folder / "run.json").stat().st_mtime)


def _run_folder(run: str, results: Path) -> Path:
    """A path, or a name in the results folder or among its samples. Raises ValueError with near matches."""
    from harness.config_errors import near
    from harness.run_file import SAMPLE, places

    for folder in places(run, results):
        if folder.is_dir():
            return folder
    names = [path.parent.name for pattern in ("*/run.json", f"{SAMPLE}/*/run.json") for path in results.glob(pattern)]
    raise ValueError(f"run '{run}': no such folder, nor in {results.resolve()}/ (--results names another); {near(run, names)}")


def _bench(args: argparse.Namespace) -> int:
    from harness.compose import ConfigError, compose_run
    from harness.launch import is_of_hydra, jobs_of, launcher_of, require_sound
    from harness.plan import plan_run, require_nothing_missing

    words = [word for word in args.overrides if is_of_hydra(word)]
    overrides = [word for word in args.overrides if not is_of_hydra(word)]
    if not args.multirun:
        if words:
            raise ConfigError(f"'{words[0]}': says how the jobs of a sweep are launched; add -m")
        composed = compose_run(args.rig, overrides)
        require_nothing_missing(plan_run(composed, args.results))
        bench_and_report(composed, args.results, args.fresh)
        return 0
    launcher, jobs = launcher_of(words), list(jobs_of(args.rig.split(","), overrides))
    require_sound(jobs, args.results, here=launcher is None)
    if len(jobs) == 1 and launcher is None:
        bench_and_report(compose_run(jobs[0].rig, jobs[0].overrides), args.results, args.fresh)
        return 0
    from harness.sweep import run_jobs

    return run_jobs(jobs, words, args.results, args.fresh)


def bench_and_report(composed: ComposedRun, results: Path, fresh: bool) -> Path:
    """Measure one run, print its table, write its page, and say where its files are; returns its folder.

    With best budgets, a budget sweep is measured first and its choices join the run.
    """
    from harness.best_budget import with_best_budgets
    from harness.folders import telling_full
    from harness.report import print_report
    from harness.report.html import write_html
    from harness.run import bench

    out = console()
    # Progress goes to stderr, so that a piped table is a table.
    progress = Console(stderr=True, highlight=False)
    if composed.run.best_budget:
        sweep = partial(bench, results=results, fresh=fresh, console=progress)
        composed = with_best_budgets(composed, results, fresh, sweep)
    with telling_full(results):
        folder: Path = bench(composed, results, fresh=fresh, console=progress)
    print_report(folder, out)
    with telling_full(folder):
        out.print(f"files: {folder}, page: {write_html(folder)}", soft_wrap=True)
    return folder
