"""What makes two arms comparable: each confounder, put into an otherwise clean pair, is found and named."""

from dataclasses import replace

import pytest
from control_sides import cell, clean, confounders, resolved, rows, side, with_cells
from synthetic import serving

from harness.control import Side, compare, every_pair


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
    plain, arm = (side(name, **resolved(name, **{factor: name})) for name in ("plain", "ngram"))
    assert compare(plain, arm, 1).verdict == "CONTROLLED"


@pytest.mark.parametrize("factor", ["draft_kv_dtype", "draft_dtype", "draft_graphs", "draft_attention_backend"])
def test_what_belongs_to_a_drafters_weights_is_asked_of_no_arm_without_weights(factor):
    lookup, trained = of_method("ngram", **{factor: None}), of_method("eagle3", **{factor: "f16"})
    assert compare(lookup, trained, 1).verdict == "CONTROLLED"
    assert compare(trained, of_method("dflash", **{factor: None}), 1).verdict == "UNKNOWN"
    assert compare(trained, of_method("dflash", **{factor: "f32"}), 1).verdict == "CONFOUNDED"


def of_method(method, **told):
    return side(method, method=method, **resolved(method, **told))


def test_a_resolved_factor_that_differs_confounds_and_names_both_values():
    found = compare(clean("plain"), side("ngram", **resolved("ngram", dtype="bfloat16")), 1)
    assert found.verdict == "CONFOUNDED"
    assert str(found.findings[0]) == 'dtype ("bfloat16" against "float32"): set target.dtype'


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


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({"prompt_hash": "other template"}, "prompt_hash of 3 prompts"),
        ({"max_tokens": 41}, "max_tokens of 3 prompts"),
        ({"ignore_eos": True}, "ignore_eos of 3 prompts"),
        ({"cached_tokens": 5}, "cached_tokens"),
        ({"error": "refused"}, "error_rate"),
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
    assert confounders(clean("plain"), side("ngram", twice)) == ["repeated_prompts"]
    warmed = [*rows("ngram"), rows("ngram")[0] | {"phase": "warmup"}]
    assert confounders(clean("plain"), side("ngram", warmed)) == ["warmup_prompts"]


def test_counters_that_disagree_with_the_requests_are_found():
    told = [row | {"drafted": 100, "accepted_by_engine": 50} for row in rows("ngram")]
    counted = {"preemptions": 0, "cached_tokens": 0}
    assert confounders(clean("plain"), side("ngram", told, counters=counted | {"drafted": 301, "accepted": 150})) == []
    wrong = counted | {"drafted": 300, "accepted": 160}
    assert confounders(clean("plain"), side("ngram", told, counters=wrong)) == ["acceptance_sources"]
    assert confounders(clean("plain"), side("ngram", told, counters=wrong, ended_ns=None)) == []


def test_what_was_not_counted_is_unknown():
    found = compare(clean("plain"), side("ngram", counters={"cached_tokens": 0}), 1)
    assert [f.factor for f in found.of("unknown")] == ["preemptions"]
    silent = [row | {"cached_tokens": None} for row in rows("ngram")]
    assert compare(clean("plain"), side("ngram", silent, counters={"preemptions": 0}), 1).verdict == "CONTROLLED"
    on = resolved("ngram", prefix_cache=True)
    found = compare(side("plain", **on), side("ngram", silent, counters={"preemptions": 0}, **on), 1)
    assert "cached_tokens" in [f.factor for f in found.of("unknown")]


def test_what_a_drafter_without_weights_cannot_have_is_part_of_the_treatment():
    """GPUs of a drafter beside prompt lookup. Between two drafters that have them they confound; so does what all can have."""
    none = side("ngram", **resolved("ngram", draft_tensor_parallel="none"))
    one, two = (of_method("eagle3", draft_tensor_parallel=value) for value in (1, 2))
    assert [confounders(none, one), confounders(one, two)] == [[], ["draft_tensor_parallel"]]
    forgets, remembers = (side("ngram", **resolved("ngram", draft_memory=value)) for value in ("none", "serving"))
    assert "draft_memory" in confounders(forgets, remembers)


def test_a_bad_cell_accuses_its_own_level_and_class_alone():
    bad = cell("ngram", 8, cell_id="other", invalid=["log: captured"])
    arm = with_cells("ngram", cell("ngram"), bad)
    assert compare(clean("plain"), arm, 1).verdict == "CONTROLLED"
    bad_chat = cell("ngram", content_class="chat", cell_id="chat", invalid=["log: captured"])
    arm = with_cells("ngram", cell("ngram"), bad_chat)
    assert confounders(clean("plain"), replace(arm, classes=("code",))) == []
    assert confounders(clean("plain"), arm) == ["validity"]


def test_counters_of_the_measured_windows_count_where_there_are_any():
    """A preemption at concurrency 8 is in the serving's total; it says nothing of concurrency 1."""
    total = {"counters": {"preemptions": 3, "cached_tokens": 0}}
    arm = with_cells("ngram", cell("ngram"), cell("ngram", 8, counters={"preemptions": 3}), **total)
    assert confounders(clean("plain"), arm) == []
    assert confounders(clean("plain"), with_cells("ngram", cell("ngram", counters={"preemptions": 3}))) == ["preemptions"]
    told = [row | {"drafted": 100} for row in rows("ngram")]
    wrong = with_cells("ngram", cell("ngram", counters={"preemptions": 0, "drafted": 310}), requests=told)
    assert confounders(clean("plain"), wrong) == ["acceptance_sources"]


def test_an_arm_that_says_less_is_found_and_scatter_is_not():
    def answers(arm, *tokens):
        return [row | {"output_tokens": n} for row, n in zip(rows(arm), tokens, strict=True)]

    plain = side("plain", answers("plain", 100, 120, 80))
    assert confounders(plain, side("ngram", answers("ngram", 90, 107, 73))) == ["output_length"]
    assert confounders(plain, side("ngram", answers("ngram", 80, 150, 75))) == []
    two = compare(side("plain", answers("plain", 100, 120, 80)[:2]), side("ngram", answers("ngram", 90, 107, 73)[:2]), 1)
    assert [f.factor for f in two.of("unknown")] == ["output_length"]


def test_between_two_arms_of_one_treatment_nothing_is_implied():
    """A/A: the drafter that would imply it is not there."""
    one, two = side("plain", **resolved("plain", kv_tokens=4096)), side("plain2", **resolved("plain2", kv_tokens=3000))
    assert confounders(one, two) == ["kv_tokens"]


def test_factors_of_the_drafter_are_compared_between_two_drafters_only():
    told = {"draft_graphs": True, "draft_attention_backend": "fa3"}
    one, other = of_method("mtp", **told), of_method("eagle3", **told | {"draft_graphs": False})
    assert confounders(clean("plain"), one) == []
    assert confounders(one, other) == ["draft_graphs"]


@pytest.mark.parametrize(
    ("factor", "value"),
    [("verify_rule", "fly"), ("verify_rule", "synthetic"), ("accept_threshold", 0.9), ("synthetic_acceptance", "2.5")],
)
def test_a_lossy_or_simulated_acceptance_confounds_even_where_both_arms_have_it(factor, value):
    told = [side(arm, **resolved(arm, **{factor: value})) for arm in ("ngram", "eagle3")]
    assert confounders(*told) == [factor]
    assert confounders(clean("plain"), told[0])[-1] == factor


def test_what_the_table_says_an_engine_tells_and_nobody_told_is_one_unknown():
    told = {name: value for name, value in serving("plain")["resolved"].items() if name not in ("kv_tokens", "linear")}
    found = compare(side("plain", resolved=told), side("ngram", resolved=told | {"drafter": '"x"'}), 1)
    assert found.verdict == "UNKNOWN"
    assert str(found.of("unknown")[0]).endswith("reference does not tell: kv_tokens, linear")


def test_an_attached_server_is_unknown_until_its_operator_tells():
    told = [side(arm, resolved={"engine": '"openai"'}) for arm in ("plain", "ngram")]
    (unknown,) = compare(*told, 1).of("unknown")
    assert "max_running_requests" in unknown.remedy


def test_every_pair_of_arms_is_audited():
    sides = {arm: clean(arm) for arm in ("plain", "ngram", "plain2")} | {"never": Side([], [], [], [])}
    found = every_pair(sides, 1)
    assert [(c.plain, c.arm) for c in found] == [("plain", "ngram"), ("plain", "plain2"), ("ngram", "plain2")]


def test_an_open_load_has_no_concurrency_to_reach():
    late = [row | {"scheduled_ns": row["sent_ns"] - 5, "concurrency": 8} for row in rows("plain")]
    asked = [row | {"arm": "ngram", "serving_id": "b0-ngram"} for row in late]
    assert compare(side("plain", late), side("ngram", asked), 8).verdict == "CONTROLLED"


def test_an_arm_without_a_serving_cannot_be_compared():
    with pytest.raises(ValueError, match="run it first"):
        compare(clean("plain"), Side([], [], [], []), 1)
