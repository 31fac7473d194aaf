"""Traps of areas C to I and K (tests/cases/cases.jsonl): what moves with speculation, told apart from the drafter itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import request, serving

from drafters.ngram import NgramDrafter
from harness.compose import compose_run
from harness.control import Side, compare
from harness.control.factors import class_of, is_draft
from harness.control.read import read_factors
from harness.gates.identity import first_difference
from harness.metrics import ledger_of, per_user_tps, tokens_per_step, tpot_ms
from harness.speedup import decode_speedup
from harness.stats import Interval, Speedup, judge
from harness.validity import is_stationary

CASES = {
    case["id"]: case
    for line in (Path(__file__).parents[1] / "cases" / "cases.jsonl").read_text("utf-8").splitlines()
    for case in [json.loads(line)]
}


def inputs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = CASES[name]["inputs"][0]
    return found


def side(arm: str, resolved: dict[str, Any] | None = None, **given: Any) -> Side:
    told = serving(arm)["resolved"] | {name: json.dumps(value) for name, value in (resolved or {}).items()}
    rows = given.pop("rows", None) or [request([(100, 1), (200, 1)], arm=arm, serving_id=f"b0-{arm}")]
    samples = given.pop("samples", ())
    return Side([serving(arm, resolved=told, **given)], rows, [], samples)


def confounders(plain: Side, arm: Side) -> list[str]:
    return [finding.factor for finding in compare(plain, arm, 1).of("confounder")]


def test_d01_a_slow_first_request_is_no_end_of_a_warm_up() -> None:
    batches = [
        [request([(0, 1), (ms, 1)], steps_with_draft=0, steps_without_draft=1, prompt_id=f"p{i}")]
        for i, ms in enumerate(inputs("D01")["ttft"])
    ]
    assert not is_stationary(batches[:2], None, 0.05)
    assert is_stationary(batches[:3], None, 0.05)


def test_d03_a_scatter_larger_than_the_effect_is_no_difference() -> None:
    """25,231 +- 17,262 against 42,934 +- 240: the ratio is 1.7 and says nothing."""
    log = Interval(math.log(42934 / 25231), 17262 / 25231 / math.sqrt(3), 2)
    assert judge(Speedup(42934 / 25231, 3, 1, log), 0.0).kind == "no detected difference"


def test_d10_hits_that_speculation_loses_are_counted_per_arm_and_confound() -> None:
    c = inputs("D10")
    plain_hits = c["L"] // c["block"] * c["block"]
    if plain_hits == c["L"]:
        plain_hits -= c["block"]  # one token is always left to compute
    plain = side("plain", rows=[request(cached_tokens=plain_hits)])
    arm = side("ngram", rows=[request(cached_tokens=c["hits"], arm="ngram")])
    (found,) = compare(plain, arm, 1).of("confounder")
    assert (found.factor, found.plain, found.arm) == ("cached_tokens", "8576", "6432")


def test_e01_the_cap_of_48_is_named_and_the_algorithm_is_the_treatment() -> None:
    c = inputs("E01")
    assert confounders(side("plain", c["plain"]), side("ngram", c["spec"])) == c["confounders"]


@pytest.mark.parametrize("level", ["c2", "c189"])
def test_e03_machinery_that_drafts_nothing_is_seen_to_be_slower(level: str) -> None:
    plain_ms, spec_ms = inputs("E03")[level]
    rows = {
        arm: [request([(100 + i * ms, 1) for i in range(11)], arm=arm, drafted=0, steps_with_draft=0, steps_without_draft=10)]
        for arm, ms in (("plain", plain_ms), ("machinery", spec_ms))
    }
    found = decode_speedup(rows, "machinery", "plain", {"plain": None, "machinery": 3})
    assert isinstance(found, Speedup)
    assert 1 / found.ratio == pytest.approx(spec_ms / plain_ms, rel=1e-4)
    assert tokens_per_step(ledger_of(rows["machinery"][0] | {"prefill_tokens": 1, "accepted": 0}, 3)) == 1.0


def test_f01_the_root_token_is_counted_by_one_engine_and_not_by_the_other() -> None:
    c = inputs("F01")
    vllm = read_factors("vllm", {"server_info": {"vllm_config": {"speculative_config": c["vllm"]}}})
    sglang = read_factors("sglang", {"server_info": c["sglang"]})
    assert vllm["draft_budget"] == sglang["draft_budget"] == 3


def test_f04_a_longer_acceptance_can_be_slower_and_the_step_says_why() -> None:
    step_ms = {}
    for name, (length, tps) in ((k, inputs("F04")[k]) for k in ("k1", "k32")):
        steps, made = 100, round(100 * length)
        chunks = [(0.0, 1), *((1000 * made / tps * (i + 1) / steps, made // steps + (i < made % steps)) for i in range(steps))]
        row = request(chunks, prefill_tokens=1, steps_with_draft=steps, steps_without_draft=0, accepted=made - steps)
        row |= {"drafted": 32 * steps, "accepted_by_engine": made - steps, "ended_inside_run": 0}
        assert per_user_tps(row, 32) == pytest.approx(tps, rel=0.01)
        per_token, per_step = tpot_ms(row, 32), tokens_per_step(ledger_of(row, 32))
        assert isinstance(per_token, float)
        assert isinstance(per_step, float)
        step_ms[name] = per_token * per_step
    assert step_ms["k32"] / step_ms["k1"] == pytest.approx(3.0, abs=0.03)


def test_g01_another_rendering_of_a_prompt_is_refused() -> None:
    c = inputs("G01")
    plain, arm = (
        side(name, rows=[request(prompt_hash=c[key], arm=name)]) for name, key in (("plain", "arm_a"), ("ngram", "arm_b"))
    )
    assert confounders(plain, arm) == ["prompt_hash of 1 prompts"]


def test_h07_the_first_divergence_is_held_against_that_of_plain_against_plain() -> None:
    c = inputs("H07")
    floor, ours = first_difference(c["plain1"], c["plain2"]), first_difference(c["plain1"], c["spec"])
    assert floor == ours == 4, "no earlier divergence than the floor"


def test_k01_a_clock_that_differs_by_arm_confounds() -> None:
    c = inputs("K01")

    def sampled(arm: str, clocks: list[float]) -> list[dict[str, Any]]:
        at = {"device": "gpu0", "serving_id": f"b0-{arm}", "utilization": 0.95}
        return [at | {"at_ns": (i + 1) * 10**7, "clock_mhz": mhz} for i, mhz in enumerate(clocks)]

    plain, arm = (side(name, samples=sampled(name, c[key])) for name, key in (("plain", "plain_mhz"), ("ngram", "spec_mhz")))
    assert confounders(plain, arm) == ["clock of gpu0"]
    same = side("ngram", samples=sampled("ngram", [mhz * (1 + c["tol"] / 2) for mhz in c["plain_mhz"]]))
    assert confounders(plain, same) == []


def test_k05_memory_of_others_is_theirs_and_their_presence_is_refused() -> None:
    c = inputs("K05")
    others = {pid: size for pid, size in c["procs"].items() if pid not in c["mine"]}
    assert c["device_used"] - sum(others.values()) == 82000
    assert confounders(side("plain"), side("ngram", foreign_processes=[f"gpu pid {pid}" for pid in others])) == [
        "foreign_processes"
    ]


@pytest.mark.parametrize(
    ("case", "factor", "kind"),
    [
        ("E02", "cuda_graphs", "confounder"),
        ("E04", "async_scheduling", "implied"),
        ("E05", "runner", "confounder"),
        ("E08", "context_limit", "implied"),
        ("E10", "draft_graphs", "confounder"),
        ("E11", "attention_backend", "confounder"),
        ("E12", "fast_moe_cold_start", "implied"),
        ("E13", "kv_tokens", "implied"),
        ("F08", "speculative_draft_attention_backend", "treatment"),
        ("F08", "attention_backend", "confounder"),
        ("F08", "memory_fraction", "confounder"),
        ("F08", "mamba_scheduler_strategy", "confounder"),
        ("F09", "kv_dtype", "confounder"),
        ("F02", "verify_width", "treatment"),
        ("F11", "max_running_requests", "confounder"),
        ("G12", "synthetic_acceptance", "confounder"),
        ("H02", "generation_config", "confounder"),
        ("H03", "draft_sample_method", "confounder"),
        ("H06", "verify_rule", "confounder"),
        ("K07", "tensor_parallel", "confounder"),
    ],
)
def test_what_the_case_says_of_a_factor_is_what_the_ledger_finds(case: str, factor: str, kind: str) -> None:
    """One pair that differs in this factor alone; a factor of the drafter is compared between two drafters with weights."""
    assert class_of(factor) == kind
    other, ours = ("eagle3", "mtp") if is_draft(factor) else ("plain", "ngram")
    found = compare(side(other, {factor: "one"}), side(ours, {factor: "another"}), 1)
    kinds = {finding.kind for finding in found.findings if finding.factor == factor}
    assert kinds == (set() if kind == "treatment" else {kind})
    assert found.verdict == {"treatment": "CONTROLLED", "implied": "IMPLIED", "confounder": "CONFOUNDED"}[kind]


def test_e04_overlap_that_is_off_in_one_arm_is_told_with_both_baselines() -> None:
    """Matched: pinned in the rig, so that plain pays it too. Best: the arm that the remedy names (test_best_baseline.py)."""
    plain, arm = side("plain", {"async_scheduling": True}), side("ngram", {"async_scheduling": False})
    (found,) = compare(plain, arm, 1).findings
    assert (found.kind, found.plain, found.arm) == ("implied", "true", "false")
    assert "for every arm" in found.remedy
    assert "plain at its best beside it (+arm@arms.plain_best=plain_best)" in found.remedy
    matched = side("plain", {"async_scheduling": False})
    assert compare(matched, arm, 1).verdict == "CONTROLLED"
    assert confounders(plain, side("plain2", {"async_scheduling": False})) == ["async_scheduling"], "no drafter implies it"


def test_e03_an_arm_of_machinery_alone_is_shipped_and_never_drafts() -> None:
    arm = compose_run("smoke", ["+arm@arms.machinery=machinery"]).run.arms["machinery"]
    drafter = NgramDrafter(None, arm.options, None)
    text = torch.tensor([[7, 8, 9] * 40])
    drafter.observe([0], None, text, [text.shape[1]])
    assert arm.draft_budget
    assert drafter.propose([0], [arm.draft_budget]) is None
    assert NgramDrafter(None, {"min_n": 1, "max_n": 3}, None).propose([0], [4]) is None, "nor does one that saw nothing"


def test_f09_a_pair_that_moves_three_things_at_once_is_not_of_one_variable() -> None:
    plain = side("plain", {"kv_dtype": "auto", "async_scheduling": True, "linear": "aiter"})
    arm = side("ngram", {"kv_dtype": "fp8", "async_scheduling": False, "linear": "default"})
    found = compare(plain, arm, 1)
    assert found.verdict == "CONFOUNDED"
    assert len([f for f in found.findings if f.kind in ("confounder", "implied")]) == 3
