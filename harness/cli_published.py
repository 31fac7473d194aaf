"""The commands about what others published: `samerig claims | replay | verdict`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

Add = Callable[[str, str, str], argparse.ArgumentParser]

CLAIMS_EXAMPLES = """examples:
  samerig claims method=dflash2 hardware=H200 task=gsm8k
  samerig claims 'speedup>=3' concurrency=1 flag!=relative_baseline,inferred
  samerig claims target~27B flag=speedup_mismatch,impossible,rate_as_gain
  samerig claims --flags                                what the flags mean, and how many rows carry each
  samerig claims method=mtp --csv mtp.csv               every column, also those that are not shown

key=a,b  one of these     key!=a,b  none of these     key~text  holds the text     key>=2  a number
results/published/README.md documents the columns."""

REPLAY_EXAMPLES = """examples:
  samerig replay published/h200_qwen27b_card            as it stands, on a machine that has it
  samerig replay published/h200_qwen27b_card --plan     what it would move, what is not stated, what is missing
  samerig replay published/h200_qwen27b_card --substitute machine=auto target=smollm2_135m engine=reference
  samerig replay results/cpu_smollm2-20260101-120000-0f345d
                                                        somebody's run again: configuration, prompts, environment, numbers
  samerig replay RIG_OR_RUN --measured results/mine     compare with a run that is measured already

machine=auto is this machine; an option's name may be cut at an underscore (target=smollm2). Every key that moves is
listed. What does not exist here (a drafter for the substituted target, a prompt set) is left out by name. A GPU's rig on a
CPU takes protocol=screen, above 8 requests at once with short answers and a short warm-up, and leaves out levels that such
answers cannot fill, all listed as moved; protocol=NAME or concurrency=[1,8] chooses otherwise."""

VERDICT_EXAMPLES = """examples:
  samerig verdict results/cpu_smollm2-20260101-120000-0f345d
  samerig verdict RUN --profile coding ./mine.yaml      these traffic profiles; by default all of profiles/
  samerig verdict RUN --matrix ./weights.yaml           another decision matrix than profiles/matrix/default.yaml
  samerig verdict --matrix published_seven              no run: check a matrix's printed totals against its own scores"""


def add_commands(add: Add) -> None:
    """Add the commands to a parser; `add` takes name, help and examples."""
    claims = add("claims", "filter what others published, about 2,000 rows", CLAIMS_EXAMPLES)
    claims.add_argument("conditions", nargs="*", metavar="CONDITION", help="key=value and the like; all must hold")
    claims.add_argument("--limit", type=int, default=40, metavar="N", help="rows to show (default: 40; 0: all)")
    claims.add_argument("--csv", type=Path, metavar="FILE", help="write the rows to a file instead")
    claims.add_argument("--flags", action="store_true", help="list the flags")
    claims.set_defaults(command=_claims)
    replay = add("replay", "run somebody else's rig or results, and compare with what was published", REPLAY_EXAMPLES)
    replay.add_argument("what", metavar="RIG|RUN", help="name or file of a rig, or the folder of a run")
    replay.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the rig, listed as moved")
    replay.add_argument("--substitute", nargs="+", default=[], metavar="KEY=VALUE", help="the same, with machine=auto")
    replay.add_argument("--plan", action="store_true", help="say what would move and what is missing; run nothing")
    replay.add_argument("--measured", type=Path, metavar="RUN", help="compare with this run instead of measuring one")
    replay.add_argument("--fresh", action="store_true", help="start a new run even if an unfinished one could be resumed")
    replay.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="results folder (default: results)"
    )
    replay.set_defaults(command=_replay)
    verdict = add("verdict", "which arm to serve, by traffic profile, from a measured run", VERDICT_EXAMPLES)
    verdict.add_argument("run", nargs="?", metavar="RUN", help="folder of a run, or its name in the results folder")
    verdict.add_argument("--profile", nargs="+", metavar="NAME", help="traffic profiles by name or file (default: all)")
    verdict.add_argument("--matrix", metavar="NAME", help="decision matrix by name or file (default: default)")
    verdict.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="results folder")
    verdict.set_defaults(command=_verdict)


def _claims(args: argparse.Namespace) -> int:
    from harness.claims.show import print_claims, print_flags, write_claims
    from harness.cli import console

    if args.flags:
        print_flags(console())
    elif args.csv:
        print(f"{args.csv}: {write_claims(args.conditions, args.csv)} claims")
    else:
        if args.limit < 0:
            raise ValueError(f"--limit: {args.limit} is less than no rows; give a number of rows, or 0 for all")
        print_claims(args.conditions, args.limit, console())
    return 0


def _replay(args: argparse.Namespace) -> int:
    from harness.replay_names import run_or_rig

    folder = run_or_rig(args.what, args.results)
    return _replay_run(args, folder) if folder else _replay_rig(args)


def _replay_rig(args: argparse.Namespace) -> int:
    from harness.cli import bench_and_report, console
    from harness.held import held_lines
    from harness.plan import plan_run, print_plan, require_nothing_missing, time_line
    from harness.published import published_of
    from harness.replay import plan_replay
    from harness.replay_claims import compare_claims
    from harness.replay_show import print_claims, print_replay

    out = console()
    replay = plan_replay(args.what, [*args.overrides, *args.substitute])
    published = published_of(replay.published.run)
    plan = plan_run(replay.composed, args.results)
    print_replay(replay, published, held_lines(plan), out)
    out.print()
    if args.plan:
        print_plan(plan, out)
        return 1 if plan.missing else 0
    if args.measured is None:
        require_nothing_missing(plan)
        out.print(f"time: {time_line(plan)}", soft_wrap=True)
    folder = args.measured or bench_and_report(replay.composed, args.results, args.fresh)
    if published is not None:
        out.print()
        print_claims(compare_claims(published, folder), out)
    return 0


def _replay_run(args: argparse.Namespace, stored: Path) -> int:
    from harness.cli import bench_and_report, console
    from harness.compose import load_dotted
    from harness.plan import plan_run, print_plan, require_nothing_missing, time_line
    from harness.prompts import WorkloadPrompts
    from harness.replay_run import compare_runs, environment, hash_line, prompt_lines, stored_run
    from harness.replay_show import print_repeated
    from harness.report.run import read_run

    if args.overrides or args.substitute:
        raise ValueError("replay of a run: takes no substitutions; replay its rig with them, or bench its config.yaml")
    out, before = console(), read_run(stored)
    out.print(f"[bold]replay of {stored.name}[/]")
    folder = args.measured
    if folder is None:
        composed = stored_run(stored)
        prompts = WorkloadPrompts(composed.run, load_dotted(composed.run.engine.adapter).tokenizer_folder(composed.run))
        for line in (hash_line(stored, composed), *prompt_lines(before, composed, prompts)):
            out.print(line, soft_wrap=True)
        plan = plan_run(composed, args.results)
        if args.plan:
            out.print()
            print_plan(plan, out)
            return 1 if plan.missing else 0
        require_nothing_missing(plan)
        out.print(f"time: {time_line(plan)}", soft_wrap=True)
        folder = bench_and_report(composed, args.results, args.fresh)
    after = read_run(folder)
    if (one := before.facts.get("config_hash")) != (two := after.facts.get("config_hash")):
        out.print(f"configurations differ: {str(one)[:12]} stored, {str(two)[:12]} here; their numbers need not agree")
    print_repeated(environment(before, after), compare_runs(before, after), out)
    return 0


def _verdict(args: argparse.Namespace) -> int:
    from harness.cli import _run_folder, console
    from harness.report.run import read_run
    from harness.verdict import recommend
    from harness.verdict_matrix import check_lines, load_matrix
    from harness.verdict_profile import load_profile, profile_names
    from harness.verdict_scores import decision_matrix
    from harness.verdict_show import print_matrix, print_recommendation

    out, matrix = console(), load_matrix(args.matrix or "default")
    if args.run is None:
        if args.matrix is None:
            raise ValueError("verdict: name a run, or a matrix to check with --matrix NAME")
        print("\n".join(check_lines(matrix)))
        return 0
    run = read_run(_run_folder(args.run, args.results))
    for profile in [load_profile(name) for name in args.profile or profile_names()]:
        print_recommendation(recommend(run, profile), out)
    print_matrix(run, matrix, decision_matrix(run, matrix), out)
    return 0
