"""Two runs stand side by side as far as their rigs agree; the factor that forbids it is named."""

import io
from copy import deepcopy

import pytest
from rich.console import Console
from synthetic import CONFIG, simulate, write_run

from harness.report.compare import print_comparison
from harness.report.rig_difference import kind_of


def printed(one, other):
    out = io.StringIO()
    code = print_comparison(one, other, Console(file=out, width=120, force_terminal=False))
    return code, out.getvalue()


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("results") / "one", simulate(2))


def changed(folder, change, rows=None):
    config = deepcopy(CONFIG)
    change(config)
    return write_run(folder, rows or simulate(2, seed=1), config)


def test_runs_of_one_rig_stand_side_by_side_and_no_ratio_is_formed(one, tmp_path):
    code, text = printed(one, write_run(tmp_path / "two", simulate(2, seed=1)))
    assert code == 0
    assert "the rigs agree in every factor" in text
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  ngram"))
    assert (lines[at].split()[:2], lines[at + 1].split()[0]) == (["ngram", "A"], "B")
    assert "x [" in lines[at]
    assert "x [" in lines[at + 1]
    assert "no ratio between the runs" in text


def test_another_target_refuses_every_number(one, tmp_path):
    code, text = printed(one, changed(tmp_path / "two", lambda c: c["target"].update(dtype="bfloat16")))
    assert code == 1
    assert "refused: all numbers, by target.dtype (float32 against bfloat16)" in text
    assert "x [" not in text


def test_another_engine_setting_refuses_speeds_and_keeps_acceptance(one, tmp_path):
    code, text = printed(one, changed(tmp_path / "two", lambda c: c["engine"].update(graphs="full")))
    assert code == 0
    assert "refused: speeds, by engine.graphs (off against full)" in text
    assert "x [" not in text
    assert "@K=4" in text


def test_another_build_that_was_found_refuses_speeds(one, tmp_path):
    rows = simulate(2, seed=1)
    for row in rows["servings"]:
        row["versions"] = {**row["versions"], "torch": "2.14.0"}
    text = printed(one, write_run(tmp_path / "two", rows))[1]
    assert "refused: speeds, by found.versions.torch (2.13.0 against 2.14.0)" in text


def test_more_blocks_are_a_label_and_another_budget_is_one_of_its_arm(one, tmp_path):
    def change(config):
        config["protocol"]["blocks"] = 5
        config["arms"]["ngram"]["draft_budget"] = 7

    code, text = printed(one, changed(tmp_path / "two", change))
    assert code == 0
    assert "differs, refuses nothing: protocol.blocks (3 against 5)" in text
    assert "arm ngram: draft_budget None against 7" in text


def test_what_only_one_run_has_is_said(one, tmp_path):
    text = printed(one, write_run(tmp_path / "two", simulate(2, ("plain", "ngram"))))[1]
    assert "only in A: arm plain2" in text


@pytest.mark.parametrize(
    ("factor", "kind"),
    [
        ("sampler.temperature", "text"),
        ("workload.sets.chat.max_tokens", "text"),
        ("engine.kv_tokens", "speed"),
        ("found.host.cpu_model", "speed"),
        ("found.target_hash", "text"),
        ("engine.interpreter", "label"),
        ("protocol.blocks", "label"),
    ],
)
def test_a_factor_forbids_what_it_changes(factor, kind):
    assert kind_of(factor) == kind


def test_a_factor_without_a_value_is_told_by_those_below_it_and_a_size_for_plans_refuses_nothing(one, tmp_path):
    code, text = printed(one, changed(tmp_path / "two", lambda c: c["engine"].update(flags={"fit": "off"})))
    assert code == 0
    assert "refused: speeds, by engine.flags.fit (absent against off)\n" in text
    code, text = printed(one, changed(tmp_path / "three", lambda c: c["target"].update(size={"weights_bytes": 5})))
    assert code == 0
    assert "differs, refuses nothing: target.size.weights_bytes (absent against 5)" in text


def test_prompt_sets_are_the_same_in_whatever_order_their_keys_are_written(one, tmp_path):
    def reorder(config):
        config["workload"]["sets"] = [dict(reversed(list(part.items()))) for part in config["workload"]["sets"]]

    code, text = printed(one, changed(tmp_path / "two", reorder))
    assert code == 0
    assert "workload.sets" not in text


def test_a_checksum_is_told_by_its_first_digits(one, tmp_path):
    sums = "0123456789ab" + "c" * 52
    text = printed(one, changed(tmp_path / "two", lambda c: c["target"].update(sha256=sums)))[1]
    assert "against 0123456789ab)" in text
