"""The first sentence of a report says no more than the numbers behind it."""

import pytest
import six_arms
from synthetic import simulate, write_run

from harness.report.figures import source
from harness.report.verdict import sentences


def said(folder):
    found = source(folder)
    return sentences(found.run, found.numbers)


def test_the_fastest_arm_is_named_with_plain_and_the_runner_up(six_arms_folder):
    lines = said(six_arms_folder)
    assert len(lines) == 2
    assert lines[1].startswith("At concurrency 2, dflash2 delivers ")
    assert "(CONTROLLED)" in lines[1]
    assert ", the next: " in lines[1]


def test_five_blocks_and_an_a_a_arm_are_a_claim(tmp_path):
    rows = six_arms.simulate(5, ("plain", "dflash2", "plain2"))
    line = said(six_arms.write(tmp_path / "run", rows))[0]
    requests = [row for row in rows["requests"] if row["arm"] == "dflash2" and row["concurrency"] == 1]
    told = "95 % intervals; 5 blocks and an A/A arm, plain once more: a claim)"
    assert line.endswith(f"(n={sum(row['phase'] == 'measured' for row in requests)} requests an arm, {told}.")


def test_fewer_blocks_are_a_screen_and_one_block_is_descriptive(tmp_path):
    screen = said(write_run(tmp_path / "three", simulate()))[0]
    assert "3 blocks: a screen, no claim" in screen
    one = said(write_run(tmp_path / "one", simulate(1, ("plain", "ngram"))))[0]
    assert "one block: descriptive, nothing is claimed" in one
    assert "[" not in one


def test_no_difference_is_no_victory(tmp_path):
    rows = simulate(3, ("plain", "plain2"))
    for table in ("servings", "requests"):
        for row in rows[table]:
            if row["arm"] == "plain2":
                row["arm"] = "ngram"
    for row in rows["servings"]:
        if row["arm"] == "ngram":
            row |= {"method": "ngram", "draft_budget": 4}
    line = said(write_run(tmp_path / "run", rows))[0]
    assert "no arm is detectably faster than plain" in line
    assert "no detected difference" in line


@pytest.mark.parametrize("dtype", ['"bfloat16"'])
def test_a_confounded_arm_is_left_out_and_said_to_be(tmp_path, dtype):
    rows = simulate(2)
    for row in rows["servings"]:
        if row["arm"] == "ngram":
            row["resolved"]["dtype"] = dtype
    line = said(write_run(tmp_path / "run", rows))[0]
    assert line == "At concurrency 1, no arm can be compared with plain; not compared: ngram (confounded)."


def test_nothing_measured_is_said(tmp_path):
    rows = {"servings": simulate(1)["servings"], "requests": [], "steps": [], "samples": []}
    assert said(write_run(tmp_path / "run", rows)) == ["Nothing is measured yet."]
