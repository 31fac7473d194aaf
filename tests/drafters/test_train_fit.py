"""A training from recipe to card on a tiny target: an interrupted one is the one that was not, and nothing is half written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from drafters.dense import DenseTarget
from drafters.eagle3 import Eagle3Drafter
from drafters.loop import Loop
from drafters.train.card import write_card
from drafters.train.data import generate
from drafters.train.evaluate import Acceptance, spread
from drafters.train.fit import LOOKUP, Training
from drafters.train.learning_curve import read_card
from drafters.train.objective import Example
from drafters.train.prompts import ROOT
from drafters.train.recipe import Recipe, read_recipe
from drafters.train.states import Recorder, StateFiles, teacher_forced
from drafters.train.store import Answer, Asked, Store
from tests.drafters.test_train_serial import SIZES

CPU, TAPS, STOPS = torch.device("cpu"), (0, 2, "final"), frozenset({1})


@pytest.fixture(scope="module")
def made(checkpoint: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Answer]]:
    """A folder with target, data recipe, twelve answers and the states of the first six."""
    folder, _ = checkpoint("llama")
    root = tmp_path_factory.mktemp("training")
    target = DenseTarget(folder, torch.float32, CPU, slots=4, max_length=96)
    asked = [Asked(f"c/{i}", "chat" if i % 2 else "code", "train", 0.0, 0) for i in range(12)]
    work = [(a, tuple(range(2 + i, 9 + 2 * i))) for i, a in enumerate(asked)]
    files = StateFiles(root / "states", TAPS)
    loop = Loop(target, Recorder(TAPS), 0, "standard", 16)
    answers = sorted(generate(loop, work, 24, STOPS, files), key=lambda a: asked.index(a.asked))
    for answer in answers[6:]:
        files.path(answer).unlink()
    store = Store(root / "data", {"target": "tiny"})
    for answer in answers:
        store.add(answer)
    store.finish(0, asked)
    spec = {"name": "tiny", "source": "folder", "location": str(folder), "file": None, "revision": None, "sha256": None}
    (folder / "tokenizer_config.json").write_text("{}")
    (root / "target.yaml").write_text(yaml.safe_dump(spec | {"implementation": "drafters.dense.DenseTarget"}))
    recipe = {"target": "target.yaml", "prompts": "", "out": "data", "slots": 4, "context": 96, "max_tokens": 24}
    recipe |= {"sampled_share": 0.0, "temperature": 0.8, "passes": 1, "shard": 12, "states": "states", "taps": list(TAPS)}
    (root / "data.yaml").write_text(yaml.safe_dump(recipe))
    return root, answers


def recipe_in(root: Path, name: str, **changes: Any) -> Recipe:
    shipped = read_recipe("eagle3", [])
    return Recipe.model_validate(
        shipped.model_dump()
        | {"data": str(root / "data.yaml"), "out": str(root / name / "out"), "work": str(root / name / "work")}
        | {"config": SIZES | {"taps": [0, 2], "draft_vocab_size": 100}, "steps": 12, "warmup": 3, "batch": 3}
        | {"held_out_prompts": 4, "held_out_tokens": 10, "held_out_budget": 3}
        | changes
    )


@pytest.fixture
def train(made: tuple[Path, list[Answer]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Training]:
    root, answers = made
    monkeypatch.setattr("drafters.train.fit.ROOT", root)
    monkeypatch.setattr("drafters.train.data.ROOT", root)
    held_out = [replace(a, output_ids=()) for a in answers[:8]]
    monkeypatch.setattr(Training, "held_out", lambda self: (held_out, STOPS))
    return lambda name, **changes: Training(recipe_in(root, name, **changes))


def test_recorded_states_are_those_of_a_teacher_forced_pass(made, checkpoint):
    root, answers = made
    files = StateFiles(root / "states", TAPS)
    target = DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=1, max_length=96)
    for answer in answers[:6]:
        recorded = files.read(answer, TAPS)
        assert recorded is not None
        forced = teacher_forced(target, answer, TAPS, chunk=7)
        torch.testing.assert_close(recorded.float(), forced.float(), rtol=2e-2, atol=2e-2)
    assert files.read(replace(answers[0], output_ids=(3,)), TAPS) is None
    assert StateFiles(root / "states", (1,)).read(answers[0], (1,)) is None


def test_missing_states_are_computed_once_and_kept(train, made):
    root, answers = made
    training = train("missing")
    example = training.sequences.example(answers[7])
    assert isinstance(example, Example)
    assert StateFiles(root / "states", TAPS).path(answers[7]).exists()
    assert len(example.taps_NM) == len(example.final_NH) == len(example.tokens_S) - 1


def test_an_interrupted_training_is_the_training_that_was_not(train):
    whole = train("whole")
    whole.run()
    first = train("parts")
    update = first._update

    def interrupted() -> dict[str, float]:
        if first.step == 7:
            raise KeyboardInterrupt
        return update()

    first._update = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert not (first.out / "model.safetensors").exists()
    second = train("parts")
    second.run()
    assert second.step == 12
    one, other = (load_file(t.out / "model.safetensors") for t in (whole, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_end_is_a_folder_that_loads_with_a_card_and_a_curve(train, made):
    training = train("end")
    training.run()
    drafter = Eagle3Drafter(training.target, training.recipe.drafter_options, str(training.out))
    assert drafter.memory()["weights"] > 0
    assert json.loads((training.out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    card = (training.out / "README.md").read_text()
    assert "12 sequences" in card
    assert f"{sum(len(a.output_ids) for a in made[1])} answer tokens" in card
    assert (training.out / "curve.png").stat().st_size > 5000
    assert [row["step"] for row in training.curve.read("held_out.csv")] == ["12"]
    assert "| start |" not in card
    training.recipe = training.recipe.model_copy(update={"initial": "training/dflash/out"})
    write_card(training, Acceptance(3, ("chat",), ((1, 2),)), Acceptance(3, ("chat",), ((0, 1),)))
    lines = (training.out / "README.md").read_text().splitlines()
    start = "| start | the trained drafter in `training/dflash/out`; the updates below come on top of its own |"
    assert lines[lines.index(start) + 1].startswith("| updates | 12 of 3 sequences")
    assert "| chat | 2.500 | 2.500 | 2.500 | 1 | 2 | 1.500 |" in lines
    assert [point.content for point in read_card(training.out / "README.md")] == ["all", "chat"]


def test_prompt_lookup_is_the_arm_of_the_rigs_and_counts_steps_without_a_draft(train):
    assert yaml.safe_load((ROOT / "rigs/arm/ngram.yaml").read_text())["options"] == LOOKUP
    training = train("lookup")
    found = training.prompt_lookup()
    limit = 2 * training.recipe.held_out_tokens
    assert all(len(steps) + sum(steps) < limit for steps in found.steps)
    assert any(0 in steps for steps in found.steps)


def test_a_checkpoint_of_another_recipe_is_refused(train):
    training = train("other", steps=1)
    training.run()
    with pytest.raises(ValueError, match="trained by another recipe; remove"):
        train("other", steps=1, seed=4).run()


def test_a_wrong_recipe_is_one_line_that_names_the_key():
    with pytest.raises(ValueError, match=r"recipe 'eagle' is unknown; known are .*eagle3.*mtp"):
        read_recipe("eagle", [])
    with pytest.raises(ValueError, match=r"recipe 'mtp': steps: .*greater than 0"):
        read_recipe("mtp", ["steps=0"])
    with pytest.raises(ValueError, match=r"recipe 'mtp': .*stepz"):
        read_recipe("mtp", ["stepz=3"])


def test_acceptance_length_counts_the_bonus_and_its_interval_resamples_prompts():
    found = Acceptance(3, ("code", "code", "chat"), ((3, 3, 0), (1,), (0, 0)))
    every = found.of()
    assert every.value == pytest.approx((7 + 6) / 6)
    assert every.low < every.value < every.high
    assert (every.prompts, every.steps) == (3, 6)
    assert found.of("chat").value == 1.0
    assert found.positions() == [3 / 6, 2 / 3, 1.0]


def test_the_spread_takes_every_class_in_turn():
    answers = [Answer(Asked(f"{c}/{i}", c, "held_out", 0.0, 0), (2,), ()) for c in "ab" for i in range(5)]
    assert [a.asked.prompt_id for a in spread(answers, 4)] == ["a/0", "b/0", "a/1", "b/1"]
