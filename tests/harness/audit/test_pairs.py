"""Pairs of launch commands with stated verdicts (`pairs.yaml`): the traps that users fell into, as commands."""

from pathlib import Path

import pytest
import yaml

from harness.audit.command import from_command
from harness.audit.compare import audit

PAIRS = yaml.safe_load(Path(__file__).with_name("pairs.yaml").read_text("utf-8"))
KINDS = ("confounder", "unknown", "implied", "treatment")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["case"])
def test_each_pair_gives_its_verdict_and_names_what_moved(pair):
    found = audit(*(from_command(pair[side], pair.get("version")) for side in "ab"))
    named = {kind: set(found.named(kind)) for kind in KINDS}
    for kind in KINDS:
        assert set(pair.get(kind, ())) <= named[kind], (kind, named)
    assert not set(pair.get("not_named", ())) & named["confounder"], named
    if "verdict" in pair:
        assert found.verdict == pair["verdict"], named
    if "note" in pair:
        assert pair["note"] in "\n".join(found.notes)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["case"])
def test_an_audit_says_the_same_with_its_sides_swapped(pair):
    a, b = (from_command(pair[side], pair.get("version")) for side in "ab")
    there, back = audit(a, b), audit(b, a)
    assert there.verdict == back.verdict
    assert {(d.factor, d.kind) for d in there.differences} == {(d.factor, d.kind) for d in back.differences}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["case"])
def test_a_command_beside_itself_moves_nothing(pair):
    account = from_command(pair["a"], pair.get("version"))
    found = audit(account, account)
    assert [d.factor for d in found.differences if d.kind != "confounder"] == []
    assert set(found.named("confounder")) <= {"synthetic_acceptance"}
