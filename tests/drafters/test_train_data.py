"""Training data: answers that are the loop's own, each once, however often it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drafters.dense import DenseTarget
from drafters.loop import Loop
from drafters.train.data import Recipe, fill, generate, job, plan
from drafters.train.prompts import ROOT, Prompt
from drafters.train.store import Answer, Store, read_answers

STOPS = frozenset({1})
RECIPE = Recipe(
    "",
    "",
    "",
    slots=4,
    context=96,
    max_tokens=12,
    sampled_share=0.3,
    temperature=0.8,
    passes=2,
    shard=5,
    states="",
    taps=(0, "final"),
)
IDENTITY = {"target": "tiny"}


def tiny_prompts(count: int = 23) -> list[Prompt]:
    return [
        Prompt(f"c/{n}", "chat" if n % 2 else "code", "held_out" if n % 7 == 3 else "train", str(n), "x" * (n + 3))
        for n in range(count)
    ]


def render(text: str) -> tuple[int, ...]:
    return tuple((7 * len(text) + 3 * i) % 150 + 2 for i in range(len(text)))


TEXTS = {p.prompt_id: p.text for p in tiny_prompts()}


def loop_of(folder: Path) -> Loop:
    target = DenseTarget(folder, torch.float32, torch.device("cpu"), RECIPE.slots, RECIPE.context)
    return Loop(target, None, 0, "standard", RECIPE.context)


def generate_all(folder: Path, store: Store, report: Callable[[Answer], None] = lambda _: None) -> None:
    left = {n: asked for n, asked in enumerate(plan(tiny_prompts(), RECIPE)) if not store.path(n).exists()}
    fill(store, left, TEXTS, render, loop_of(folder), RECIPE.max_tokens, STOPS, report)


@pytest.fixture(scope="module")
def complete(checkpoint: Callable[..., tuple[Path, object]], tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    out = tmp_path_factory.mktemp("complete")
    generate_all(checkpoint("llama")[0], Store(out, IDENTITY))
    return read_answers(out)


def test_every_planned_sequence_is_there_once_in_the_order_of_the_plan(complete: list[Answer]) -> None:
    assert [a.asked for a in complete] == [asked for shard in plan(tiny_prompts(), RECIPE) for asked in shard]


def test_an_answer_is_what_the_loop_gives_to_the_request_alone(complete: list[Answer], checkpoint) -> None:
    loop = loop_of(checkpoint("llama")[0])
    for answer in complete[::3]:
        loop.submit(job(answer.asked, answer.prompt_ids, RECIPE.max_tokens, STOPS))
        alone: list[int] = []
        while loop.busy:
            alone += [token for emission in loop.step() for token in emission.tokens]
        assert answer.prompt_ids == render(TEXTS[answer.asked.prompt_id])
        assert answer.output_ids == tuple(alone)
        assert len(alone) == RECIPE.max_tokens or alone[-1] in STOPS


def test_held_out_prompts_are_greedy_asked_once_and_never_in_the_training_split(complete: list[Answer]) -> None:
    held = [a.asked for a in complete if a.asked.split == "held_out"]
    assert {a.prompt_id for a in held} == {p.prompt_id for p in tiny_prompts() if p.split == "held_out"}
    assert all(a.temperature == 0 and a.seed == 0 for a in held)
    assert len(held) == len(set(held))
    assert not {a.prompt_id for a in held} & {a.asked.prompt_id for a in complete if a.asked.split == "train"}


def test_the_plan_samples_the_asked_share_and_more_passes_only_append() -> None:
    many = tiny_prompts(900)
    recipe = replace(RECIPE, passes=1)
    once = plan(many, recipe)
    share = sum(a.temperature > 0 for shard in once for a in shard if a.split == "train") / sum(
        p.split == "train" for p in many
    )
    assert abs(share - recipe.sampled_share) < 0.06
    thrice = plan(many, replace(recipe, passes=3))
    assert thrice[: len(once)] == once
    assert all(a.temperature == recipe.temperature and a.split == "train" for shard in thrice[len(once) :] for a in shard)


def test_passes_of_a_sampled_prompt_differ(complete: list[Answer]) -> None:
    sampled = [a for a in complete if a.asked.temperature > 0]
    by_prompt: dict[str, set[tuple[int, ...]]] = {}
    for answer in sampled:
        by_prompt.setdefault(answer.asked.prompt_id, set()).add(answer.output_ids)
    twice = [n for n, c in Counter(a.asked.prompt_id for a in sampled).items() if c == 2]
    assert twice
    assert all(len(by_prompt[name]) == 2 for name in twice)


def test_every_slot_works_while_there_is_work(checkpoint) -> None:
    loop = loop_of(checkpoint("llama")[0])
    work = [(asked, (2, 3, 4)) for shard in plan(tiny_prompts(), RECIPE) for asked in shard]
    widths, step = [], loop.step

    class Watched:
        target, records, busy, submit = loop.target, loop.records, property(lambda _: loop.busy), staticmethod(loop.submit)

        def step(self):
            out = step()
            widths.append(max((r.requests for r in loop.records if r.kind == "decode"), default=0))
            return out

    assert len(list(generate(Watched(), work, RECIPE.max_tokens, STOPS))) == len(work)
    assert sum(widths[RECIPE.slots : -RECIPE.max_tokens]) / len(widths[RECIPE.slots : -RECIPE.max_tokens]) > 0.85 * RECIPE.slots


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [1, 6, 17, 30])
def test_a_run_that_ends_anywhere_goes_on_to_the_same_sequences(
    ended: int, complete: list[Answer], checkpoint, tmp_path
) -> None:
    asked_twice: Counter[tuple[str, float, int]] = Counter()

    def end_after(answer: Answer) -> None:
        asked_twice[answer.asked.key] += 1
        if sum(asked_twice.values()) == ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_all(checkpoint("llama")[0], Store(tmp_path, IDENTITY), end_after)
    generate_all(checkpoint("llama")[0], Store(tmp_path, IDENTITY), lambda answer: asked_twice.update([answer.asked.key]))
    assert read_answers(tmp_path) == complete
    assert set(asked_twice.values()) == {1}  # nothing that had ended was generated again
    assert not list(tmp_path.glob("*.tmp"))


CHILD = """
import sys, time, torch
from pathlib import Path
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
import test_train_data as t
t.generate_all(Path({folder!r}), t.Store(Path({out!r}), t.IDENTITY), lambda _: time.sleep(0.05))
"""


def test_a_killed_process_loses_only_what_was_being_decoded(complete: list[Answer], checkpoint, tmp_path: Path) -> None:
    folder = checkpoint("llama")[0]
    source = CHILD.format(tests=str(Path(__file__).parent), folder=str(folder), out=str(tmp_path))
    child = subprocess.Popen(
        [sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 40
    while not list(tmp_path.glob("part-*.parquet")) and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(read_answers(tmp_path)) + len(Store(tmp_path, IDENTITY).pending)
    assert 0 < before < len(complete)
    again: list[Answer] = []
    generate_all(folder, Store(tmp_path, IDENTITY), again.append)
    assert len(again) == len(complete) - before
    assert read_answers(tmp_path) == complete


def test_half_a_line_of_the_journal_is_dropped_and_generated_again(complete: list[Answer], tmp_path: Path) -> None:
    store = Store(tmp_path, IDENTITY)
    for answer in complete[:3]:
        store.add(answer)
    journal = tmp_path / "pending-0of1.jsonl"
    journal.write_text(journal.read_text()[:-9])
    again = Store(tmp_path, IDENTITY)
    assert list(again.pending) == [a.asked.key for a in complete[:2]]
    again.add(complete[2])
    assert list(Store(tmp_path, IDENTITY).pending.values()) == complete[:3]


def test_two_workers_leave_each_other_alone_and_one_can_finish_for_both(complete: list[Answer], tmp_path: Path) -> None:
    shards = plan(tiny_prompts(), RECIPE)
    first, second = Store(tmp_path, IDENTITY, "0of2"), Store(tmp_path, IDENTITY, "1of2")
    for answer in complete[:5]:
        first.add(answer)
    for answer in complete[5:9]:
        second.add(answer)
    other = (tmp_path / "pending-1of2.jsonl").read_bytes()
    assert first.finish(0, shards[0])
    assert not first.finish(1, shards[1])
    assert (tmp_path / "pending-1of2.jsonl").read_bytes() == other
    alone = Store(tmp_path, IDENTITY, "0of1")
    alone.add(complete[9])
    assert alone.finish(1, shards[1])
    assert read_answers(tmp_path) == complete[:10]


def test_data_of_another_target_or_limit_is_refused(complete: list[Answer], tmp_path: Path) -> None:
    Store(tmp_path, IDENTITY).add(complete[0])
    with pytest.raises(ValueError, match="use another `out` folder"):
        Store(tmp_path, {"target": "other"})


def test_a_recipe_with_a_wrong_key_is_refused_and_the_shipped_one_is_read(tmp_path: Path) -> None:
    shipped = ROOT / "data" / "smollm2_135m.yaml"
    assert Recipe.read(shipped).max_tokens == 192
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(shipped.read_text().replace("slots:", "slotz:"))
    with pytest.raises(ValueError, match=r"keys \['slots', 'slotz'\] are missing or unknown"):
        Recipe.read(wrong)


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"python -m drafters\.train\.data"):
        read_answers(tmp_path)
