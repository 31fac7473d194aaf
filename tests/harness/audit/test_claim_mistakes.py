"""`samerig audit` checks a source's own numbers: seeded errors are named, and each has a clean twin of the same shape."""

from functools import cache
from typing import Any

import pytest
import yaml

from harness.audit.account import Account
from harness.audit.claims import mistakes
from harness.audit.command import from_command
from harness.audit.rig import from_run
from harness.audit.sources import claim_mistakes
from harness.compose import compose_run
from harness.config import Run
from harness.published import Published, published_of
from harness.rigs import list_published
from harness.verdict_matrix import Matrix, totals

CARD = "published/h200_qwen27b_card"
PLAIN = "{row: seed:1, arm: plain, task: T, concurrency: 1, tok_s: 68.9}"
PARTS = "; ".join(
    f"{{row: seed:{i}, arm: mtp, task: {task}, concurrency: 1, speedup: {speedup}, acceptance_length: {length}}}"
    for i, (task, speedup, length) in enumerate([("A", 2.59, 5.02), ("B", 2.20, 3.91), ("C", 1.96, 3.74)], 2)
)
ONE = "row: seed:9, arm: mtp, task: T, concurrency: 1"
# check, claims with the error, the same claims without it; the budget of `mtp` is 7
SEEDED: dict[str, tuple[str, str, str]] = {
    "a speedup that its rates do not give": (
        "speedup_mismatch",
        f"{PLAIN}; {{{ONE}, tok_s: 178.5, speedup: 2.95}}",
        f"{PLAIN}; {{{ONE}, tok_s: 178.5, speedup: 2.59}}",
    ),
    "a speedup that its own baseline does not give": (
        "speedup_mismatch",
        f"{{{ONE}, tok_s: 59.1, baseline_tok_s: 28.9, speedup: 2.38}}",
        f"{{{ONE}, tok_s: 59.1, baseline_tok_s: 28.9, speedup: 2.05}}",
    ),
    "a rate told as a gain": (
        "rate_as_gain",
        f"{{{ONE}, tok_s: 54, baseline_tok_s: 20, gain: 0.64, acceptance_rate: 0.64}}",
        f"{{{ONE}, tok_s: 54, baseline_tok_s: 20, gain: 1.7, acceptance_rate: 0.64}}",
    ),
    "more tokens a step than drafts and one": (
        "length_outside_budget",
        f"{{{ONE}, acceptance_length: 8.4}}",
        f"{{{ONE}, acceptance_length: 7.9}}",
    ),
    "an acceptance length below one": (
        "length_outside_budget",
        f"{{{ONE}, acceptance_length: 0.834}}",
        f"{{{ONE}, acceptance_length: 1.834}}",
    ),
    "an acceptance rate in percent": (
        "rate_outside_share",
        f"{{{ONE}, acceptance_rate: 64}}",
        f"{{{ONE}, acceptance_rate: 0.64}}",
    ),
    "a rate over the anchor too": (
        "anchor_in_budget",
        f"{{{ONE}, acceptance_length: 4.66, acceptance_rate: 0.61}}",
        f"{{{ONE}, acceptance_length: 5.27, acceptance_rate: 0.61}}",
    ),
    "a speedup over another drafter": (
        "baseline_not_plain",
        f"{{{ONE}, speedup: 1.45, over: dflash2}}",
        f"{{{ONE}, speedup: 1.45}}",
    ),
    "a mean that its parts do not have": (
        "average_outside_parts",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: mean of 3, acceptance_length: 4.72}}",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: mean of 3, acceptance_length: 4.22}}",
    ),
    "a range that ends outside of its parts": (
        "average_outside_parts",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: range over 3 tasks, concurrency: 1, speedup: [1.96, 2.95]}}",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: range over 3 tasks, concurrency: 1, speedup: [1.96, 2.59]}}",
    ),
    "a range that is narrower than its parts": (
        "average_outside_parts",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: range over 3 tasks, concurrency: 1, speedup: [2.00, 2.30]}}",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: range over 3 tasks, concurrency: 1, speedup: [2.0, 2.6]}}",
    ),
    "a range that is narrower at its upper end": (
        "average_outside_parts",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: range over 3 tasks, acceptance_length: [3.74, 4.72]}}",
        f"{PARTS}; {{row: seed:9, arm: mtp, task: range over 3 tasks, acceptance_length: [3.74, 5.02]}}",
    ),
    **{
        f"a speedup of {bound} {right} and more than its rates give": (
            "speedup_mismatch",
            f"{PLAIN}; {{{ONE}, tok_s: 153.1, speedup: 5.22, bound: {bound}}}",
            f"{PLAIN}; {{{ONE}, tok_s: 153.1, speedup: {right}, bound: {bound}}}",
        )
        for bound, right in (("about", 2.3), ("about", 2), ("up to", 2.22), ("up to", 2.2), ("over", 2), ("over", 2.22))
    },
}


@cache
def card() -> Run:
    return compose_run(CARD).run


def told(claims: str, **block: Any) -> list[str]:
    """Mistakes of arm `mtp` of the card with other claims, which all hold for its rig otherwise."""
    published = Published.model_validate({**block, "claims": [yaml.safe_load(claim) for claim in claims.split("; ")]})
    run = card().model_copy(update={"published": published.model_dump(mode="json", exclude_none=True)})
    arms = {arm: from_run(run, arm, CARD) for arm in run.arms}
    return [line.partition(": ")[2] for line in mistakes(published, arms, {"mtp"})]


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_error_is_named_and_its_clean_twin_is_not(name: str) -> None:
    check, wrong, right = SEEDED[name]
    assert [line.partition(": ")[0] for line in told(wrong)] == [check]
    assert told(right) == []


def test_a_plain_arm_on_another_rig_is_no_baseline() -> None:
    claims = f"{PLAIN}; {{{ONE}, tok_s: 178.5, speedup: 2.59}}"
    moved = told(claims, factors={"plain": {"cuda_graphs": "off"}, "mtp": {"cuda_graphs": "decode"}})
    assert [line.partition(": ")[0] for line in moved] == ["baseline_not_plain"]
    assert "cuda_graphs" in moved[0]
    assert told(claims, factors={"plain": {"cuda_graphs": "decode"}, "mtp": {"cuda_graphs": "decode"}}) == []


def test_parts_that_are_not_all_there_accuse_nobody() -> None:
    some = PARTS.partition("; ")[2]
    assert told(f"{some}; {{row: seed:9, arm: mtp, task: mean of 3, acceptance_length: 4.72}}") == []


def test_a_total_that_its_scores_do_not_give_is_named_and_the_true_one_is_not() -> None:
    def mistake(printed: str) -> str | None:
        criteria = [{"name": "speed", "weight": 0.6, "scores": {"x": 4}}, {"name": "care", "weight": 0.4, "scores": {"x": 3}}]
        matrix = Matrix.model_validate({"name": "m", "summary": "s", "criteria": criteria, "printed": {"x": printed}})
        (found,) = totals(matrix)
        return found.mistake.check if found.mistake else None

    assert mistake("3.80") == "total_mismatch"
    assert mistake("3.60") is None


SGLANG = "python -m sglang.launch_server --model-path M --speculative-algorithm DFLASH --speculative-draft-model-path f"
VLLM = """vllm serve M --speculative-config '{"method":"dflash","model":"f","num_speculative_tokens":%d}'"""


def budgets(tokens: int, drafts: int) -> list[str]:
    sides: list[Account] = [from_command(f"{SGLANG} --speculative-num-draft-tokens {tokens}"), from_command(VLLM % drafts)]
    return claim_mistakes(*sides)


def test_one_printed_budget_that_is_two_budgets_is_named() -> None:
    assert budgets(8, 8) == ["A against B: anchor_in_budget: both print 8: 7 drafts against 8"]
    assert budgets(8, 7) == []


@pytest.mark.parametrize("name", [name for name, _ in list_published()])
def test_no_published_rig_has_a_mistake_that_is_not_known(name: str) -> None:
    run = compose_run(name).run
    published = published_of(run)
    assert published is not None
    arms = {arm: from_run(run, arm, name) for arm in run.arms}
    found = {line.split(": ")[1] for line in mistakes(published, arms, set(arms))}
    known = {
        "published/gb10_flash_next_rate_as_gain": {"rate_as_gain"},
        "published/rtx4090_qwen27b_depths": {"baseline_not_plain"},
        "published/xpress_qwen3_8b": {"baseline_not_plain"},
    }
    assert found == known.get(name, set())
