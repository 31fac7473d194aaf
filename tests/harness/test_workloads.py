"""Prompt sets: pinned bytes, a nested order, no repeats, and every problem found before a launch."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config import Arm, Engine, Machine, PromptSet, Protocol, Run, Sampler, Target, Workload
from harness.workloads import FOLDER, check_workload, load_set, manifest, prompt_count, select, set_label, warmup_prompts

CLASSES = {"code", "math", "chat", "prose", "structured", "repetition", "long"}
MEASURED = [name for name in manifest() if not name.startswith("warmup")]


def protocol(**changes: object) -> Protocol:
    fields: dict[str, object] = {
        "name": "test",
        "blocks": 1,
        "a_a": False,
        "prompts_per_set": 4,
        "waves": 2,
        "warmup_prompts": 3,
        "warmup_batches": 4,
        "settled_within": 0.05,
        "load": "closed",
        "request_timeout_s": 60,
        "sample_period_s": 1,
    }
    return Protocol.model_validate(fields | changes)


def run(
    *sets: PromptSet, concurrency: tuple[int, ...] = (1,), target: dict[str, object] | None = None, **changes: object
) -> Run:
    plain = Arm(method="plain", drafter=None, needs_checkpoint=False, label="plain")
    engine = Engine(
        adapter="harness.engines.reference.Reference",
        max_running_requests=64,
        kv_tokens=4096,
        kv_dtype="float32",
        prefill_chunk=256,
        prefix_cache=False,
        graphs="off",
        verify_rule="standard",
    )
    fields: dict[str, object] = {
        "name": "tiny",
        "source": "package",
        "location": "a==1",
        "file": "a/b.gguf",
        "sha256": "0" * 64,
        "implementation": "drafters.dense.DenseTarget",
        "dtype": "float32",
        "quantization": "none",
        "context": 2048,
    }
    return Run(
        name="test",
        summary="test",
        machine=Machine(kind="cpu"),
        engine=engine,
        target=Target.model_validate(fields | (target or {})),
        draft_budget=3,
        concurrency=concurrency,
        sampler=Sampler(temperature=0, top_p=1, top_k=0, seed=0),
        arms={"plain": plain},
        workload=Workload(name="test", sets=sets, stop="natural", seed=0),
        protocol=protocol(**changes),
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the committed sets that a test may damage."""
    shutil.copytree(FOLDER, tmp_path / "workloads")
    return tmp_path / "workloads"


def test_every_content_class_is_shipped_with_licence_source_and_enough_prompts_for_two_waves_of_32() -> None:
    entries = {name: manifest()[name][1] for name in MEASURED}
    assert {entry.content_class for entry in entries.values()} == CLASSES
    for name, entry in entries.items():
        assert len(load_set(name).prompts) == entry.n >= 64, name
        assert entry.source
        assert entry.licence
        assert entry.language


def test_a_changed_byte_is_refused_and_the_message_names_file_and_fix(copied: Path) -> None:
    path = copied / "chat.jsonl"
    path.write_bytes(path.read_bytes().replace(b"sourdough", b"sourdoggh", 1))
    with pytest.raises(ValueError, match=r"chat\.jsonl: sha256 is .*restore it.*workloads\.build"):
        load_set("chat", copied)


def test_a_changed_context_of_a_long_set_is_refused(copied: Path) -> None:
    with (copied / "long_source.txt").open("a") as stream:
        stream.write("x")
    with pytest.raises(ValueError, match=r"long_source\.txt: sha256"):
        load_set("long", copied)


def test_a_count_that_the_manifest_does_not_promise_is_refused(copied: Path) -> None:
    content = json.loads((copied / "manifest.json").read_text())
    content["sets"]["prose"]["n"] -= 1
    (copied / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="the manifest says"):
        load_set("prose", copied)


def test_an_unknown_set_lists_the_near_match() -> None:
    with pytest.raises(ValueError, match="did you mean 'gsm8k'"):
        load_set("gms8k")


def test_a_larger_selection_starts_with_every_smaller_one() -> None:
    data = load_set("humaneval")
    chosen = select(data, 64, seed=3)
    assert len({prompt.id for prompt in chosen}) == 64
    assert all(select(data, n, seed=3) == chosen[:n] for n in (0, 1, 7, 63))


def test_the_order_depends_on_the_seed_and_not_on_the_order_of_the_file() -> None:
    data = load_set("gsm8k")
    turned = replace(data, prompts=data.prompts[::-1])
    assert select(data, 100, seed=0) == select(turned, 100, seed=0)
    assert select(data, 100, seed=0) != select(data, 100, seed=1)


def test_more_prompts_than_the_set_has_are_refused_instead_of_repeated() -> None:
    with pytest.raises(ValueError, match="101 distinct prompts needed, 'gsm8k' has 100"):
        select(load_set("gsm8k"), 101, seed=0)


def test_no_prompt_occurs_twice_in_the_measured_sets_and_none_is_a_warm_up() -> None:
    asked = [(name, prompt) for name in MEASURED for prompt in load_set(name).prompts]
    texts = [(prompt.messages, prompt.passages[:1]) for _, prompt in asked]
    assert len(set(texts)) == len(texts)
    warm = {prompt.messages for prompt in load_set("warmup").prompts}
    assert not warm & {prompt.messages for _, prompt in asked}
    read = {passage for _, prompt in asked for passage in prompt.passages}
    assert not read & set(load_set("warmup_long").prompts[0].passages)


def test_warm_up_goes_through_the_classes_in_turn_and_is_nested() -> None:
    seven = warmup_prompts(7, seed=0)
    assert {prompt.content_class for prompt in seven} == CLASSES
    assert warmup_prompts(56, seed=0)[:7] == seven
    assert warmup_prompts(0, seed=0) == ()
    with pytest.raises(ValueError, match="'warmup' has 56"):
        warmup_prompts(57, seed=0)


def test_warm_up_for_a_depth_is_composed_from_another_text() -> None:
    assert all(prompt.passages for prompt in warmup_prompts(48, seed=0, depth=512))


def test_frozen_turns_end_with_the_user_and_alternate() -> None:
    several = [prompt for prompt in load_set("chat").prompts if len(prompt.messages) > 1]
    assert len(several) >= 10
    for prompt in several:
        assert [role for role, _ in prompt.messages] == (["user", "assistant"] * 4)[: len(prompt.messages)]
        assert prompt.messages[-1][0] == "user"


def test_long_prompts_start_at_different_passages_and_can_read_the_whole_text() -> None:
    prompts = load_set("long").prompts
    assert len({prompt.passages[0] for prompt in prompts}) == len(prompts)
    assert {tuple(sorted(prompt.passages)) for prompt in prompts} == {tuple(sorted(prompts[0].passages))}


@pytest.mark.parametrize(("waves", "per_set", "concurrency", "asked"), [(2, 4, 1, 4), (2, 4, 32, 64), (1, 100, 8, 100)])
def test_a_cell_asks_whole_waves_and_at_least_the_prompts_of_the_protocol(
    waves: int, per_set: int, concurrency: int, asked: int
) -> None:
    assert prompt_count(protocol(waves=waves, prompts_per_set=per_set), concurrency) == asked


def test_a_sound_workload_has_no_problem() -> None:
    assert check_workload(run(PromptSet(set="gsm8k", max_tokens=128), PromptSet(set="long", max_tokens=128, depth=1500))) == []


@pytest.mark.parametrize(
    ("prompt_set", "problem"),
    [
        (PromptSet(set="humanevla", max_tokens=8), r"workload.sets\[0\].set: unknown prompt set .*'humaneval'"),
        (PromptSet(set="long", max_tokens=8), r"workload.sets\[0\].depth: .*set depth"),
        (PromptSet(set="chat", max_tokens=8, depth=512), r"workload.sets\[0\].depth: .*remove depth"),
        (PromptSet(set="long", max_tokens=128, depth=1921), "1921 exceeds target.context - max_tokens = 1920"),
    ],
)
def test_a_problem_of_one_set_is_one_line_that_names_its_key(prompt_set: PromptSet, problem: str) -> None:
    (found,) = check_workload(run(prompt_set))
    assert "\n" not in found
    with pytest.raises(ValueError, match=problem):
        raise ValueError(found)


def test_too_few_prompts_for_the_highest_concurrency_are_found_before_launch() -> None:
    (found,) = check_workload(run(PromptSet(set="chat", max_tokens=8), concurrency=(1, 64)))
    assert "128 distinct prompts needed, 'chat' has 66" in found


def test_too_many_warm_up_prompts_are_found() -> None:
    (found,) = check_workload(run(PromptSet(set="chat", max_tokens=8), warmup_prompts=999))
    assert found.startswith("protocol.warmup_prompts: 999 asked")


@pytest.mark.parametrize(("revision", "pinned"), [("main", False), ("a" * 40, True), ("a" * 39, False)])
def test_a_branch_is_not_a_pinned_revision(revision: str, pinned: bool) -> None:
    hub = {"source": "hub", "location": "org/model", "revision": revision}
    problems = check_workload(run(PromptSet(set="chat", max_tokens=8), target=hub))
    assert (problems == []) is pinned


def test_two_depths_of_one_set_have_different_labels() -> None:
    labels = [set_label(PromptSet(set="long", max_tokens=8, depth=depth)) for depth in (None, 512, 1500)]
    assert labels == ["long", "long@512", "long@1500"]
