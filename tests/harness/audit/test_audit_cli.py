"""`samerig audit`: verdict first, exit codes, JSON, files."""

import json

import pytest

from harness.cli import main

PLAIN = "vllm serve M --num-gpu-blocks-override 4096 --no-enable-prefix-caching --enforce-eager"
MTP = f"{PLAIN} --spec-method mtp --spec-tokens 3"


def run(capsys, *argv):
    code = main(["audit", *argv])
    return code, capsys.readouterr()


def test_a_controlled_pair_exits_0_and_says_so_first(capsys):
    code, out = run(capsys, PLAIN, MTP, "--version-a", "0.33.0", "--version-b", "0.33.0")
    assert code == 0
    assert out.out.startswith("CONTROLLED: only the drafter moved, as far as the commands say")


def test_a_confounded_pair_exits_1_and_names_the_factor(capsys):
    code, out = run(capsys, PLAIN, f"{MTP} --max-num-seqs 4")
    assert code == 1
    assert out.out.startswith("CONFOUNDED: the drafter moved, and so did max_running_requests")


@pytest.mark.parametrize(
    ("side", "told"), [("vllm serve M stray x", "'x'"), ("no_such_rig:plain", "no_such_rig"), ("cpu_smollm2:x", "'x'")]
)
def test_a_side_that_cannot_be_read_exits_2_in_one_line(capsys, side, told):
    code, out = run(capsys, side, PLAIN)
    assert code == 2
    assert told in out.err
    assert out.err.count("\n") == 1


def test_json_holds_both_values_and_where_they_come_from(capsys):
    _, out = run(capsys, PLAIN, f"{MTP} --max-num-seqs 4", "--json")
    found = json.loads(out.out)
    (one,) = [d for d in found["differences"] if d["factor"] == "max_running_requests"]
    assert (found["verdict"], one["kind"], one["a"]) == ("CONFOUNDED", "confounder", None)
    assert one["b"] == {"value": 4, "origin": "stated", "where": "--max-num-seqs"}


def test_commands_may_stand_in_files(capsys, tmp_path):
    for name, text in (("a.sh", PLAIN), ("b.sh", f"#!/bin/sh\n{MTP} \\\n  --port 9\n")):
        (tmp_path / name).write_text(text)
    code, out = run(capsys, str(tmp_path / "a.sh"), str(tmp_path / "b.sh"), "--version-a", "0.33.0", "--version-b", "0.33.0")
    assert (code, "b.sh" in out.out) == (0, True)


def test_two_arms_of_a_rig(capsys):
    code, out = run(capsys, "cpu_smollm2:plain", "cpu_smollm2:ngram")
    assert (code, out.out.partition(":")[0]) == (0, "CONTROLLED")
