"""Published rigs: they compose, hold what their sources say, reach every seed claim, and say what they lack here."""

import csv
import io
import re
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from harness.claims.build import FILES, FOLDER
from harness.claims.numbers import read_number
from harness.compose import ComposedRun, ConfigError, compose_run
from harness.control.factors import table
from harness.plan import plan_run, print_plan
from harness.published import Claim, Published, published_of
from harness.rigs import PUBLISHED, RIGS, list_published

NAMES = [name for name, _ in list_published()]
# What a source may leave open that is no factor between two servings.
OUTSIDE = {"machine", "target", "sampler", "protocol", "blocks", "concurrency", "depths", "presence_penalty"}
# Facts of an arm that no canonical factor holds.
PERSONAL = {"embedding_table", "person", "target"}


@pytest.fixture(scope="module")
def rigs() -> dict[str, ComposedRun]:
    return {name: compose_run(name) for name in NAMES}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    found = {}
    for kind, name in FILES.items():
        with (FOLDER / name).open(newline="", encoding="utf-8") as file:
            found |= {f"{kind}:{i}": row for i, row in enumerate(csv.DictReader(file), 1)}
    return found


def block(composed: ComposedRun) -> Published:
    found = published_of(composed.run)
    assert found is not None
    return found


def test_the_rigs_that_the_field_argues_about_are_there(rigs: dict[str, ComposedRun]) -> None:
    assert len(rigs) == 19
    words = (
        "card",
        "lmsys",
        "tpu",
        "blackwell",
        "gb10_glm",
        "dgx_spark_qwen27b",
        "rtx4090",
        "flash_next",
        "a100",
        "5090",
        "xpress",
    )
    assert all(any(word in name for name in rigs) for word in words)


@pytest.mark.parametrize("name", NAMES)
def test_a_published_rig_is_complete(name: str, rigs: dict[str, ComposedRun]) -> None:
    run, found = rigs[name].run, block(rigs[name])
    assert name == f"{PUBLISHED}/{run.name}"
    assert run.source
    assert run.summary
    assert len(run.arms) >= 2
    assert found.unstated
    assert all(any(claim.arm == arm for claim in found.claims) for arm in found.factors if arm != "plain")


@pytest.mark.parametrize("name", NAMES)
def test_a_published_rig_says_what_is_missing_here(name: str, rigs: dict[str, ComposedRun], tmp_path_factory) -> None:
    plan = plan_run(rigs[name], tmp_path_factory.mktemp("none"))
    assert plan.missing
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=120))
    assert "missing" in out.getvalue()


def test_every_seed_claim_is_reached_from_exactly_one_rig(
    rigs: dict[str, ComposedRun], rows: dict[str, dict[str, str]]
) -> None:
    reached = [claim.row for composed in rigs.values() for claim in block(composed).claims if claim.row.startswith("seed:")]
    assert sorted(reached) == sorted(row for row in rows if row.startswith("seed:"))
    assert len(reached) == 54


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_says_what_its_row_says(name: str, rigs: dict[str, ComposedRun], rows: dict[str, dict[str, str]]) -> None:
    for claim in block(rigs[name]).claims:
        row = rows[claim.row]
        for field in ("tok_s", "speedup", "acceptance_length", "acceptance_rate"):
            assert _ends(getattr(claim, field)) == _printed(row[field]), (claim.row, field)
        assert (claim.task or "") == row["task"]
        assert str(claim.concurrency or "") == (row["concurrency"] if row["concurrency"].isdigit() else "")
        _same_arm(claim, row, rigs[name])


def _ends(quantity: object) -> tuple[float, float] | None:
    return None if quantity is None else quantity if isinstance(quantity, tuple) else (quantity, quantity)


def _printed(text: str) -> tuple[float, float] | None:
    found = read_number(text)
    return None if found is None else (found.low, found.high)


def _same_arm(claim: Claim, row: dict[str, str], composed: ComposedRun) -> None:
    arm = composed.run.arms[claim.arm]
    family = {"none": "plain", "DFlash2": "dflash", "EAGLE-3": "eagle3", "DSpark (Markov head)": "dspark"}
    assert arm.method == family.get(row["draft_method"], row["draft_method"].lower())
    assert (arm.drafter or "").endswith("DFlash2Drafter") == (row["draft_method"] == "DFlash2")
    if row["draft_budget"].isdigit() and arm.method != "plain":
        assert arm.draft_budget == int(row["draft_budget"])


def test_budgets_of_the_confounded_pairs_differ_and_of_the_clean_ones_do_not(rigs: dict[str, ComposedRun]) -> None:
    def budgets(name: str) -> set[int | None]:
        return {arm.draft_budget for arm in rigs[f"published/{name}"].run.arms.values() if arm.method != "plain"}

    assert budgets("tpu_v5p_llama31_8b") == {10, 2}
    assert budgets("gb10_glm53_flash") == {5, 3}
    assert budgets("h200_qwen27b_card") == {7}
    assert budgets("rtx4090_qwen27b_depths") == {4}


def test_what_the_arms_of_a_source_did_not_share_is_stated_by_canonical_factor(rigs: dict[str, ComposedRun]) -> None:
    for name, composed in rigs.items():
        for factors in block(composed).factors.values():
            assert factors.keys() <= table().keys() | PERSONAL, name
        assert block(composed).unstated.keys() <= table().keys() | OUTSIDE, name
    spark = block(rigs["published/dgx_spark_qwen27b_nvfp4"]).factors
    assert (spark["dflash2"]["engine"], spark["mtp"]["engine"]) == ("sglang", "vllm")
    ladder = block(rigs["published/dgx_spark_flash_next"]).factors
    assert [ladder[arm]["cuda_graphs"] for arm in ("plain", "mtp4", "mtp3")] == ["off", "piecewise", "decode"]


def test_words_about_what_moved_are_those_of_the_seed_file(
    rigs: dict[str, ComposedRun], rows: dict[str, dict[str, str]]
) -> None:
    for name, composed in rigs.items():
        found = block(composed)
        said = {rows[c.row]["moved"] for c in found.claims if c.row.startswith("seed:")} - {""}
        if found.moved and len(said) == 1:
            assert found.moved == said.pop() or name.endswith("flash_next"), name


def test_values_that_a_rig_fills_in_are_those_it_has(rigs: dict[str, ComposedRun]) -> None:
    for name, composed in rigs.items():
        engine, filled = composed.run.engine, block(composed).unstated
        for factor, value in (
            ("kv_tokens", engine.kv_tokens),
            ("max_running_requests", engine.max_running_requests),
            ("prefill_chunk", engine.prefill_chunk),
            ("prefix_cache", engine.prefix_cache),
            ("cuda_graphs", engine.graphs),
            ("context_limit", composed.run.target.context),
        ):
            assert filled.get(factor, value) == value, (name, factor)


def test_what_is_published_is_no_part_of_the_experiment(rigs: dict[str, ComposedRun], tmp_path) -> None:
    composed = rigs["published/tpu_v5p_llama31_8b"]
    assert yaml.safe_load(composed.yaml)["published"]["claims"]
    (tmp_path / "config.yaml").write_text(composed.yaml)
    again = compose_run(str(tmp_path / "config.yaml"))
    assert again.config_hash == composed.config_hash
    (tmp_path / "config.yaml").write_text(re.sub(r"tok_s: \S+", "tok_s: 1.0", composed.yaml).replace("2.29", "9.99"))
    assert compose_run(str(tmp_path / "config.yaml")).config_hash == composed.config_hash


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("published.claims=[]", "published.claims: "),
        ("published.claims.0.row=card", "published.claims.0.row: "),
        ("+published.claims.0.tokens=3", "published.claims.0.tokens: extra inputs"),
        ("published.claims.0.arm=mtpp", "'mtpp' is no arm of this rig; did you mean 'mtp'?"),
    ],
)
def test_a_mistake_in_the_block_is_one_line_that_names_its_key(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        compose_run("published/h200_qwen27b_card", [override])


def test_options_of_published_rigs_are_seen_beside_those_of_all_rigs() -> None:
    run = compose_run("published/h200_qwen27b_card", ["machine=gb10", "sampler=greedy"]).run
    assert (run.machine.gpu, run.sampler.temperature) == ("GB10", 0.0)
    with pytest.raises(ConfigError, match="did you mean 'h200_qwen27b_card'"):
        compose_run("published/h200_qwen27b_cart")


def test_no_option_of_the_published_groups_is_unused() -> None:
    used = " ".join(path.read_text("utf-8") for path in (RIGS / PUBLISHED).glob("*.yaml"))
    options = list((RIGS / PUBLISHED).glob("*/*.yaml"))
    assert [path.stem for path in options if f"{path.parent.name}: {path.stem}\n" not in used] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_a_published_rig_composes_anywhere_to_the_same_experiment(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "mine.yaml"
    copy.write_text((RIGS / f"{name}.yaml").read_text("utf-8"), "utf-8")
    assert compose_run(str(copy)).config_hash == compose_run(name).config_hash
