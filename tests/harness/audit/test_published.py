"""Every pair that `seed_claims.csv` compares: the audit states what moved as its `moved` column does."""

from functools import cache
from pathlib import Path

import pytest

from harness.audit.claims import mistakes
from harness.audit.compare import Audit, audit
from harness.audit.rig import from_run
from harness.audit.sources import account_of, claim_mistakes
from harness.compose import compose_run
from harness.config import Run
from harness.published import published_of
from harness.rigs import list_published

# rig, A, B: verdict, confounders, unknowns. Empty confounders of an UNKNOWN pair: what it lacks is all that can be said.
PAIRS = {
    ("h200_qwen27b_card", "mtp", "dflash2"): ("CONTROLLED", set(), set()),
    ("h200_qwen27b_card", "plain", "mtp"): ("CONTROLLED", set(), set()),
    ("h200_qwen27b_card", "plain", "dflash2"): ("CONTROLLED", set(), set()),
    ("lmsys_qwen3_4b", "eagle3", "dflash"): ("UNKNOWN", set(), {"machine", "draft_budget"}),
    ("tpu_v5p_llama31_8b", "dflash", "eagle3"): ("CONFOUNDED", {"draft_budget"}, set()),
    ("blackwell_gpt_oss_120b", "dflash", "eagle3"): ("UNKNOWN", set(), {"engine", "draft_budget"}),
    ("blackwell_llama31_8b", "dflash", "eagle3"): ("UNKNOWN", set(), {"engine", "draft_budget"}),
    ("b300_gpt_oss_120b", "plain", "dflash"): ("UNKNOWN", set(), {"engine"}),
    ("qwen35_4b_matched", "mtp", "dflash2"): ("UNKNOWN", set(), {"engine", "machine"}),
    ("gb10_glm53_flash", "dflash2", "mtp"): ("CONFOUNDED", {"draft_budget"}, set()),
    ("dgx_spark_qwen27b_nvfp4", "dflash2", "mtp"): ("CONFOUNDED", {"engine"}, {"draft_budget"}),
    ("rtx4090_qwen27b_depths", "mtp", "dflash2"): ("CONTROLLED", set(), set()),
    ("dgx_spark_before_after_1", "plain", "dflash2"): ("UNKNOWN", set(), {"engine", "target"}),
    ("dgx_spark_before_after_2", "plain", "dflash2"): ("UNKNOWN", set(), {"engine", "target"}),
    ("a100_before_after", "plain", "dflash2"): ("UNKNOWN", set(), {"engine", "target"}),
    ("dgx_spark_flash_next", "plain", "mtp4"): ("CONFOUNDED", {"cuda_graphs"}, {"embedding_table"}),
    ("dgx_spark_flash_next", "mtp4", "mtp3"): ("CONFOUNDED", {"cuda_graphs", "embedding_table"}, set()),
    ("gb10_flash_next_two", "mtp3", "mtp4"): ("CONFOUNDED", {"cuda_graphs", "embedding_table"}, set()),
    ("dgx_spark_glm53_flash_two_people", "mtp", "dflash2"): (
        "CONFOUNDED",
        {"quantization", "engine", "context_limit", "person"},
        {"draft_budget"},
    ),
    ("rtx5090_deepseek_v41_nvme", "plain", "dspark"): ("UNKNOWN", set(), {"engine"}),
    ("xpress_qwen3_8b", "dflash", "xpress"): ("UNKNOWN", set(), {"machine", "draft_budget"}),
}
# Words of the `moved` column and the factors that stand for them.
WORDS = {
    "drafter": {"method"},
    "draft budget": {"draft_budget"},
    "budget": {"draft_budget"},
    "engine": {"engine"},
    "graph": {"cuda_graphs"},
    "table placement": {"embedding_table"},
    "quantization": {"quantization"},
    "context": {"context_limit"},
    "person": {"person"},
    "engine settings not stated": {"engine"},
}


@cache
def run_of(rig: str) -> Run:
    return compose_run(f"published/{rig}").run


def audited(rig: str, a: str, b: str) -> Audit:
    return audit(*(from_run(run_of(rig), arm, f"published/{rig}") for arm in (a, b)))


@pytest.mark.parametrize(("pair", "wanted"), PAIRS.items(), ids=lambda value: " ".join(map(str, value)))
def test_each_published_pair_has_the_verdict_of_its_facts(pair, wanted):
    found = audited(*pair)
    assert (found.verdict, set(found.named("confounder")), set(found.named("unknown"))) == wanted


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[1] != "plain"], ids=" ".join)
def test_what_moved_is_what_the_moved_column_says(pair):
    published = published_of(run_of(pair[0]))
    found = audited(*pair)
    named = {d.factor for d in found.differences}
    for word, factors in WORDS.items():
        is_same_drafter = word == "drafter" and pair[1].startswith("mtp") and pair[2].startswith("mtp")
        if published.moved and word in published.moved and not is_same_drafter:
            assert factors <= named, (word, named)


def test_every_published_rig_with_two_arms_is_among_the_pairs_or_tests_arithmetic():
    rigs = {name.removeprefix("published/") for name, _ in list_published()}
    assert rigs - {pair[0] for pair in PAIRS} <= {"gb10_flash_next_rate_as_gain"}


def test_a_rate_told_as_a_gain_is_caught():
    side = account_of("published/gb10_flash_next_rate_as_gain:mtp", Path("results"))
    assert side.source == "published"
    assert [m for m in claim_mistakes(side) if "rate_as_gain" in m] != []


def test_a_speedup_over_another_drafter_is_told():
    side = account_of("published/rtx4090_qwen27b_depths:dflash2", Path("results"))
    assert any("baseline_not_plain" in m and "mtp" in m for m in claim_mistakes(side))


def test_the_clean_card_has_no_mistake():
    sides = [account_of(f"published/h200_qwen27b_card:{arm}", Path("results")) for arm in ("mtp", "dspark", "dflash2")]
    assert claim_mistakes(*sides) == []


@pytest.mark.parametrize("arm", ["mtp4", "mtp3"])
def test_a_speedup_over_a_plain_arm_that_is_another_rig_is_told(arm):
    """The source prints rates only; a speedup out of them would be over a floor with its graphs off."""
    run = run_of("dgx_spark_flash_next")
    published = published_of(run)
    arms = {name: from_run(run, name, "published/dgx_spark_flash_next") for name in run.arms}
    assert list(mistakes(published, arms, {arm})) == []
    (rate,) = (one for one in published.claims if one.arm == arm and one.tok_s)
    claimed = published.model_copy(
        update={"claims": (*published.claims, rate.model_copy(update={"speedup": rate.tok_s / 15.4}))}
    )
    (told,) = (one for one in mistakes(claimed, arms, {arm}) if "baseline_not_plain" in one)
    assert "cuda_graphs" in told
