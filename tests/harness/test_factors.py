"""The table of canonical factors: complete, loadable, and true to what recorded engines really tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import Model
from harness.control import factors
from harness.control.factors import ENGINES, FILE, class_of, is_draft, table


def test_every_factor_says_what_why_and_what_to_do() -> None:
    assert len(table()) > 70
    for name, factor in table().items():
        assert all(text.strip() and not text.endswith(".") for text in (factor.what, factor.why, factor.remedy)), name


def test_every_factor_is_read_somewhere_or_measured() -> None:
    for name, factor in table().items():
        told = [factor.source(engine) for engine in ENGINES]
        assert any(source not in (None, "absent") for source in told), name


def test_the_four_classes_are_used_and_the_drafter_is_the_treatment() -> None:
    assert {factor.kind for factor in table().values()} == {"treatment", "implied", "confounder", "unknown"}
    treatments = {name for name, factor in table().items() if factor.kind == "treatment"}
    assert {"method", "draft_budget", "draft_checkpoint_hash", "verify_width"} <= treatments
    assert all(is_draft(name) for name in treatments)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("max_running_requests", "confounder"),  # SGLang's 48
        ("cuda_graphs", "confounder"),
        ("runner", "confounder"),
        ("attention_backend", "confounder"),
        ("kv_dtype", "confounder"),
        ("admission_delay", "confounder"),
        ("kv_tokens", "implied"),
        ("fast_moe_cold_start", "implied"),
        ("async_scheduling", "implied"),
        ("context_limit", "implied"),
        ("graph_batch_sizes", "implied"),
        ("engine_seed", "unknown"),
    ],
)
def test_known_side_effects_of_speculation_have_their_class(name: str, kind: str) -> None:
    assert class_of(name) == kind


def test_a_key_outside_the_table_is_the_drafters_by_its_name_and_else_confounds() -> None:
    assert class_of("speculative_config.num_speculative_tokens") == "treatment"
    assert class_of("vllm_config.speculative_config.method") == "treatment"
    assert class_of("mamba_scheduler_strategy") == "confounder"
    assert factors.remedy("mamba_scheduler_strategy") == "make it equal in the rig"


def test_an_engine_that_tells_nothing_has_every_factor_of_its_own_unreadable() -> None:
    for name, factor in table().items():
        if factor.part not in ("draft", "prompts", "load", "machine") and "every" not in factor.read:
            assert factor.source("openai") in (None, "absent"), name
    assert table()["runner"].is_told_by("vllm")
    assert not table()["runner"].is_told_by("sglang")
    assert not table()["prompt_hash"].is_told_by("vllm")


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("x: {class: odd, part: build, what: w, why: y, remedy: r, read: {every: z}}", "x: .*class"),
        ("x: {class: implied, part: build, what: w, why: y, remedy: r, read: {vllm: z}}", "x: read needs `every`"),
        ("x: {class: implied, part: build, what: w, why: y, remedy: r, note: n, read: {every: z}}", "x: .*note"),
    ],
)
def test_a_broken_table_is_refused_with_the_entry_named(
    entry: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / FILE.name
    file.write_text(entry)
    monkeypatch.setattr(factors, "FILE", file)
    with pytest.raises(ValueError, match=f"(?s){what}"):
        table.__wrapped__()


def test_an_entry_is_frozen() -> None:
    assert isinstance(table()["kv_tokens"], Model)
    with pytest.raises(ValueError, match="frozen"):
        table()["kv_tokens"].kind = "treatment"
