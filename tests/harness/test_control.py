"""What makes two arms comparable: each confounder, put into an otherwise clean pair, is found and named."""

import json

import pytest
from synthetic import request, serving

from harness.control import Side, compare, is_treatment


def rows(arm, **given):
    """Three requests of one cell, one after another."""
    spans = ((0, "a"), (300, "b"), (600, "c"))
    return [
        request([(100, 1), (200, 1)], arm=arm, serving_id=f"b0-{arm}", sent_ns=at * 1_000_000, prompt_id=name, **given)
        for at, name in spans
    ]


def side(arm, requests=None, samples=(), **given):
    return Side([serving(arm, **given)], rows(arm) if requests is None else requests, [], samples)


def clean(arm):
    return side(arm)


def resolved(arm, **factors):
    told = serving(arm)["resolved"] | {name: json.dumps(value) for name, value in factors.items()}
    return {"resolved": told}


def confounders(plain, arm, concurrency=1):
    return [finding.factor for finding in compare(plain, arm, concurrency).of("confounder")]


def test_a_clean_pair_is_controlled():
    found = compare(clean("plain"), clean("ngram"), 1)
    assert found.findings == ()
    assert (found.verdict, found.arm, found.plain) == ("CONTROLLED", "ngram", "plain")


def test_maps_as_parquet_gives_them_compare_the_same():
    plain = serving("plain")
    pairs = {name: list(plain[name].items()) for name in ("resolved", "host", "memory", "counters", "versions")}
    assert compare(Side([plain | pairs], rows("plain"), [], []), clean("ngram"), 1).verdict == "CONTROLLED"


@pytest.mark.parametrize("factor", ["drafter", "draft_budget", "draft_options", "method", "speculative_config.method"])
def test_the_drafter_and_its_budget_are_the_treatment(factor):
    assert is_treatment(factor)
    plain, arm = (side(name, **resolved(name, **{factor: name})) for name in ("plain", "ngram"))
    assert compare(plain, arm, 1).verdict == "CONTROLLED"


def test_other_factors_are_no_treatment():
    assert not any(map(is_treatment, ("dtype", "kv_dtype", "attention_backend", "cuda_graphs")))


def test_a_resolved_factor_that_differs_confounds_and_names_both_values():
    found = compare(clean("plain"), side("ngram", **resolved("ngram", dtype="bfloat16")), 1)
    assert found.verdict == "CONFOUNDED"
    assert str(found.findings[0]) == 'dtype ("float32" against "bfloat16"): make it equal in the rig'


def test_a_factor_that_the_engine_moves_because_of_the_drafter_is_implied():
    found = compare(side("plain", **resolved("plain", kv_tokens=4096)), side("ngram", **resolved("ngram", kv_tokens=3000)), 1)
    assert (found.verdict, found.of("implied")[0].factor) == ("IMPLIED", "kv_tokens")


def test_a_factor_that_one_arm_does_not_tell_is_unknown():
    for told in (resolved("ngram", attention="sdpa"), resolved("ngram", dtype=None), {"resolved": {}}):
        assert compare(clean("plain"), side("ngram", **told), 1).verdict == "UNKNOWN"


def test_a_confounder_outweighs_what_is_unknown_or_implied():
    told = resolved("ngram", dtype="bfloat16", kv_tokens=1, attention="sdpa")
    assert compare(side("plain", **resolved("plain", kv_tokens=2)), side("ngram", **told), 1).verdict == "CONFOUNDED"


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({"config_hash": "other"}, "config_hash"),
        ({"code_hash": "other"}, "code_hash"),
        ({"versions": {"torch": "2.12.0", "python": "3.12.1"}}, "versions: torch"),
        ({"env": {"OMP_NUM_THREADS": "1"}}, "env: OMP_NUM_THREADS"),
        ({"invalid": ["counters disagree"]}, "invalid serving"),
        ({"throttle_reasons": ["sw_power_cap"]}, "throttling"),
        ({"counters": {"preemptions": 2, "cached_tokens": 0}}, "preemptions"),
    ],
)
def test_a_serving_that_differs_is_found(given, factor):
    assert confounders(clean("plain"), side("ngram", **given)) == [factor]


def test_a_block_over_two_sessions_is_told_and_changes_no_verdict():
    found = compare(clean("plain"), side("ngram", session_id="later"), 1)
    assert [f.factor for f in found.of("note")] == ["session of block 0"]
    assert found.verdict == "CONTROLLED"


def test_a_host_that_changed_is_found_and_its_load_is_not_held_against_it():
    host = serving("ngram")["host"]
    assert confounders(clean("plain"), side("ngram", host=host | {"governor": '"powersave"'})) == ["host governor"]
    assert confounders(clean("plain"), side("ngram", host=host | {"load_1m": "9.0"})) == []


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({"prompt_hash": "other template"}, "prompt_hash of 3 prompts"),
        ({"max_tokens": 41}, "max_tokens of 3 prompts"),
        ({"ignore_eos": True}, "ignore_eos of 3 prompts"),
        ({"cached_tokens": 5}, "cached prompt tokens"),
        ({"error": "refused"}, "error rate"),
    ],
)
def test_requests_that_differ_are_found(given, factor):
    asked = rows("ngram", **given)
    if "prompt_hash" in given:
        asked = [row | {"prompt_hash": f"{row['prompt_id']} {row['prompt_hash']}"} for row in asked]
    assert confounders(clean("plain"), side("ngram", asked)) == [factor]


def test_other_prompts_in_the_same_block_are_found():
    assert confounders(clean("plain"), side("ngram", rows("ngram")[:2])) == ["prompts"]
    assert "prompts" in confounders(clean("plain"), side("ngram", rows("ngram", block=1)))


def test_a_prompt_that_repeats_or_was_warmed_up_is_found():
    twice = [*rows("ngram"), rows("ngram")[0] | {"sent_ns": 900_000_000, "scheduled_ns": 900_000_000, "ended_ns": 10**9}]
    assert confounders(clean("plain"), side("ngram", twice)) == ["repeated prompts"]
    warmed = [*rows("ngram"), rows("ngram")[0] | {"phase": "warmup"}]
    assert confounders(clean("plain"), side("ngram", warmed)) == ["warm-up prompts measured"]


def test_counters_that_disagree_with_the_requests_are_found():
    told = [row | {"drafted": 100, "accepted_by_engine": 50} for row in rows("ngram")]
    counted = {"preemptions": 0, "cached_tokens": 0}
    assert confounders(clean("plain"), side("ngram", told, counters=counted | {"drafted": 301, "accepted": 150})) == []
    wrong = counted | {"drafted": 300, "accepted": 160}
    assert confounders(clean("plain"), side("ngram", told, counters=wrong)) == ["counters against requests"]
    assert confounders(clean("plain"), side("ngram", told, counters=wrong, ended_ns=None)) == []


def test_what_was_not_counted_is_unknown():
    found = compare(clean("plain"), side("ngram", counters={"cached_tokens": 0}), 1)
    assert [f.factor for f in found.of("unknown")] == ["preemptions"]
    silent = [row | {"cached_tokens": None} for row in rows("ngram")]
    assert compare(clean("plain"), side("ngram", silent, counters={"preemptions": 0}), 1).verdict == "CONTROLLED"
    on = resolved("ngram", prefix_cache=True)
    found = compare(side("plain", **on), side("ngram", silent, counters={"preemptions": 0}, **on), 1)
    assert "cached prompt tokens" in [f.factor for f in found.of("unknown")]


def test_a_clock_that_ran_slower_is_found():
    def sampled(mhz):
        return [{"device": "gpu0", "clock_mhz": mhz}, {"device": "gpu0", "clock_mhz": None}]

    assert confounders(side("plain", samples=sampled(1900.0)), side("ngram", samples=sampled(1700.0))) == ["clock of gpu0"]
    assert confounders(side("plain", samples=sampled(1900.0)), side("ngram", samples=sampled(1880.0))) == []


def test_notes_change_no_verdict():
    found = compare(clean("plain"), side("ngram", foreign_processes=["make"], flags=["client: lag 3 ms"]), 1)
    assert found.verdict == "CONTROLLED"
    assert [f.factor for f in found.of("note")] == ["other processes", "flag"]


def test_an_open_load_has_no_concurrency_to_reach():
    late = [row | {"scheduled_ns": row["sent_ns"] - 5, "concurrency": 8} for row in rows("plain")]
    asked = [row | {"arm": "ngram", "serving_id": "b0-ngram"} for row in late]
    assert compare(side("plain", late), side("ngram", asked), 8).verdict == "CONTROLLED"


def test_an_arm_without_a_serving_cannot_be_compared():
    with pytest.raises(ValueError, match="run it first"):
        compare(clean("plain"), Side([], [], [], []), 1)
