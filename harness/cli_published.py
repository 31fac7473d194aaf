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


def add_commands(add: Add) -> None:
    """Add the commands to a parser; `add` takes name, help and examples."""
    claims = add("claims", "filter what others published, about 2,000 rows", CLAIMS_EXAMPLES)
    claims.add_argument("conditions", nargs="*", metavar="CONDITION", help="key=value and the like; all must hold")
    claims.add_argument("--limit", type=int, default=40, metavar="N", help="rows to show (default: 40; 0: all)")
    claims.add_argument("--csv", type=Path, metavar="FILE", help="write the rows to a file instead")
    claims.add_argument("--flags", action="store_true", help="list the flags")
    claims.set_defaults(command=_claims)


def _claims(args: argparse.Namespace) -> int:
    from harness.claims.show import print_claims, print_flags, write_claims
    from harness.cli import console

    if args.flags:
        print_flags(console())
    elif args.csv:
        print(f"{args.csv}: {write_claims(args.conditions, args.csv)} claims")
    else:
        print_claims(args.conditions, args.limit, console())
    return 0
