"""An audit as people read it, on a narrow terminal and on a wide one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from harness.audit.command import from_command
from harness.audit.compare import Audit, audit
from harness.audit.render import print_audit

LONG = "--a-flag-that-has-a-very-long-name"
DRAFTER = "--speculative-config.model Org/Some-8B-speculator.eagle3 --speculative-config.method eagle3"


def pair() -> Audit:
    return audit(from_command(f"vllm serve M {DRAFTER}", None), from_command(f"vllm serve M --enforce-eager {LONG} 3", None))


def printed(found: Audit, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_audit(found, [], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_name_of_a_factor_is_cut_and_no_line_is_wider_than_the_terminal(width):
    found = pair()
    text = printed(found, width)
    assert max(map(len, text.splitlines())) <= width
    names = [d.factor for d in found.differences]
    below_heading = text[text.index("factor  ") :].splitlines()
    starts = [line.split("  ")[0].strip() for line in below_heading]
    assert [start for start in starts if start in names] == names


@pytest.mark.parametrize("width", [60, 120])
def test_why_and_what_to_do_are_told_in_whole_words(width):
    words = printed(pair(), width).split()
    for d in pair().differences:
        expected = f"{d.why}; {d.remedy}".split() if d.remedy not in ("", "-") else d.why.split()
        assert any(words[i : i + len(expected)] == expected for i in range(len(words))), d.factor
