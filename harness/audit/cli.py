"""`samerig audit A B`: arguments, output, exit code."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

EXAMPLES = """examples:
  samerig audit cpu_smollm2:plain cpu_smollm2:ngram             two arms of a rig
  samerig audit published/tpu_v5p_llama31_8b:dflash published/tpu_v5p_llama31_8b:eagle3
  samerig audit results/<run>:ngram published/h200_qwen27b_card:dflash2
  samerig audit "vllm serve M --max-num-seqs 64" "vllm serve M --max-num-seqs 64 --spec-method mtp --spec-tokens 3"
  samerig audit plain.sh dflash.sh --version-a 0.33.0 --version-b 0.33.0
  samerig audit A B --json | jq .differences                    for other programs

A side is a rig's arm, the arm of a results folder or of a published rig, a launch command of vLLM, SGLang or llama.cpp as text,
or a file that holds one. A release may stand in the text too: an image's tag, or a line `pip install vllm==0.33.0`. Defaults
are filled in for the releases whose tables are in harness/audit/engines.

exit code: 0 CONTROLLED; 1 IMPLIED, CONFOUNDED or UNKNOWN; 2 a side that could not be read"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="rig:arm, run:arm, published/rig:arm, a launch command, or a file with one")
    parser.add_argument("b", metavar="B", help="the other side, of any of these kinds")
    parser.add_argument("--version-a", metavar="RELEASE", help="release of A's engine, if A is a command")
    parser.add_argument("--version-b", metavar="RELEASE", help="release of B's engine, if B is a command")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace, console: Console) -> int:
    """Audit and print; returns the exit code. Raises ValueError for a side that cannot be read."""
    from harness.audit.compare import audit
    from harness.audit.render import as_json, print_audit
    from harness.audit.sources import claim_mistakes, side_of

    a, b = (
        side_of(side, text, args.results, version)
        for side, text, version in (("A", args.a, args.version_a), ("B", args.b, args.version_b))
    )
    found, claims = audit(a, b), claim_mistakes(a, b)
    if args.json:
        print(json.dumps(as_json(found, claims), indent=1))
    else:
        print_audit(found, claims, console)
    return 0 if found.verdict == "CONTROLLED" else 1
