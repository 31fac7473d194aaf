"""Training of EAGLE-3 and MTP on a tiny target: the unrolled passes are the chain that serves, and it learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters import chain
from drafters.chain import SerialPasses
from drafters.eagle3 import Eagle3Drafter
from drafters.mtp import MtpDrafter
from drafters.train.eagle3 import Eagle3Objective
from drafters.train.mtp import MtpObjective
from drafters.train.objective import Example, Teacher
from drafters.train.soft import CandidateHead
from tests.drafters.test_train_block import World

SIZES: dict[str, Any] = {
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "max_position_embeddings": 512,
}
UNROLLED = {"passes": 4, "single": 0.3, "decay": 0.8, "prompt_weight": 0.25}
EAGLE3 = (
    Eagle3Objective,
    SIZES | {"taps": [0, 2], "draft_vocab_size": 100},
    UNROLLED,
    Eagle3Drafter,
    {"tap_numbering": "inputs"},
)
MTP = (
    MtpObjective,
    SIZES | {"recycle": "post_norm"},
    UNROLLED | {"frequent": 120, "sampled": 20},
    MtpDrafter,
    {"feature": "post_norm", "recycle": "post_norm", "zero_first_embedding": False, "modules": 1},
)
KINDS = pytest.mark.parametrize("kind", [EAGLE3, MTP], ids=["eagle3", "mtp"])


@pytest.fixture(scope="module")
def world(checkpoint: Callable[..., Any]) -> World:
    return World(checkpoint)


def examples_for(world: World, objective: Any) -> list[Example]:
    """The world's examples with the taps that this objective reads."""
    if objective.taps == ("final",):
        return [Example(e.tokens_S, e.prompt, e.final_NH, e.final_NH) for e in world.examples]
    return world.examples


def objective_of(world: World, kind: Any) -> Any:
    make, config, options, *_ = kind
    torch.manual_seed(0)
    sample = [Example(e.tokens_S, e.prompt, e.final_NH, e.final_NH) for e in world.examples] if kind is MTP else world.examples
    return make(world.target, world.teacher, sample, config, options)


def exported(objective: Any, folder: Path) -> str:
    config, tensors = objective.export()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def drafter_of(world: World, kind: Any, objective: Any, folder: Path) -> Any:
    return kind[3](world.target, kind[4], exported(objective, folder))


def trained(world: World, kind: Any, steps: int = 120) -> tuple[Any, list[float]]:
    objective = objective_of(world, kind)
    stand_in = World.__new__(World)
    stand_in.examples = examples_for(world, objective)
    return objective, World.train(stand_in, objective, steps)


@pytest.fixture(scope="module")
def learned(world: World) -> Callable[[Any], tuple[Any, list[float]]]:
    """`learned(kind)`: an objective trained once for all tests, and its losses."""
    made: dict[Any, tuple[Any, list[float]]] = {}

    def once(kind: Any) -> tuple[Any, list[float]]:
        if kind[0] not in made:
            made[kind[0]] = trained(world, kind)
        return made[kind[0]]

    return once


@torch.inference_mode()
@KINDS
def test_pass_k_of_training_is_draft_k_of_serving(world, kind, tmp_path):
    """Serving reads its own drafts; here it is made to read the text, so that both chains read the same tokens."""
    objective = objective_of(world, kind)
    drafter = drafter_of(world, kind, objective, tmp_path)
    example = examples_for(world, objective)[1]
    passes = list(objective.passes(example, 4))
    network = drafter.networks[0] if kind is MTP else drafter.network
    rows, at = len(example.final_NH), 0
    for first in range(example.prompt - 1, rows - 5, 3):  # the last row that has a true feature
        fresh = example.taps_NM[None, at : first + 1]
        drafter.observe([2], fresh, example.tokens_S[None, at + 1 : first + 2], [first + 1 - at])
        at = first + 1
        state, feature = network.read(drafter.chain.last_PH[[2]])
        assert_row(passes[0], first + 1, state[0])
        serial: SerialPasses = drafter.chain.passes
        for k in range(2, 5):
            token = example.tokens_S[first + k].reshape(1, 1)
            out = serial.run(0, network, [2], [first + k - 1], token, feature[:, None])
            state, feature = network.read(out[:, 0])
            assert_row(passes[k - 1], first + k, state[0])
    drafter.release(2)


def assert_row(one: tuple[Tensor, Tensor], read: int, state_H: Tensor) -> None:
    read_N, state_NH = one
    torch.testing.assert_close(state_NH[read_N == read][0], state_H, rtol=1e-4, atol=1e-4)


@KINDS
def test_what_is_trained_drafts_its_texts_and_what_is_not_does_not(world, learned, kind, tmp_path):
    before = world.accepted(drafter_of(world, kind, objective_of(world, kind), tmp_path / "before"), 4)
    objective, losses = learned(kind)
    after = world.accepted(drafter_of(world, kind, objective, tmp_path / "after"), 4)
    assert losses[-1] < losses[0]
    assert before < 0.7
    assert after > 2.0


def shift_while_drafting(drafter: Any, by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafted rows are turned as if they stood `by` positions away; committed rows stay where they are."""
    run, rotation = drafter.chain.passes.run, chain.rotation_at

    def shifted(*arguments: Any) -> Tensor:
        drafting = len(arguments) == 6  # observe also says how many rows are real
        with monkeypatch.context() as patch:
            patch.setattr(chain, "rotation_at", lambda rotary, positions: rotation(rotary, positions + by * drafting))
            out: Tensor = run(*arguments)
        return out

    drafter.chain.passes.run = shifted


SHIFTED_TAPS = {"eagle3": [(0, 1), (1, 2)], "mtp": [(1,)]}  # MTP: the layer before the last, not the state behind the norm


@pytest.mark.parametrize(("name", "kind"), [("eagle3", EAGLE3), ("mtp", MTP)], ids=["eagle3", "mtp"])
def test_a_shift_by_one_of_taps_or_positions_costs_acceptance(world, learned, name, kind, tmp_path, monkeypatch):
    folder = exported(learned(kind)[0], tmp_path)

    def accepted(change: Callable[[Any], None]) -> float:
        drafter = kind[3](world.target, kind[4], folder)
        change(drafter)
        return world.accepted(drafter, 4)

    right = accepted(lambda drafter: None)
    by_taps = {taps: accepted(lambda drafter, taps=taps: setattr(drafter, "taps", taps)) for taps in SHIFTED_TAPS[name]}
    assert max(by_taps.values()) < 0.8 * right, by_taps
    by_step = {by: accepted(lambda drafter, by=by: shift_while_drafting(drafter, by, monkeypatch)) for by in (-1, 1)}
    assert max(by_step.values()) < 0.95 * right, by_step


def test_training_on_one_pass_alone_accepts_less_behind_the_first_draft(world, learned, tmp_path):
    """What the unrolling is for: with it removed, features of the drafter's own are never seen in training."""
    alone = (*EAGLE3[:2], UNROLLED | {"single": 1.0}, *EAGLE3[3:])
    unrolled, _ = learned(EAGLE3)
    single, _ = trained(world, alone)
    accepted = [
        world.accepted(drafter_of(world, EAGLE3, o, tmp_path / name), 4) for name, o in (("a", unrolled), ("b", single))
    ]
    assert accepted[1] < 0.8 * accepted[0]


@KINDS
def test_the_loss_of_a_text_is_blind_to_what_comes_later(world, kind):
    """Changing states and tokens from some row on leaves every earlier chain as it was."""
    objective = objective_of(world, kind)
    example = examples_for(world, objective)[0]
    cut = example.prompt + 8
    tokens = example.tokens_S.clone()
    tokens[cut + 1 :] = 3
    taps = example.taps_NM.clone()
    taps[cut + 1 :] = 0.5
    changed = Example(tokens, example.prompt, taps, example.final_NH)
    for (read, state), (_, other) in zip(objective.passes(example, 4), objective.passes(changed, 4), strict=True):
        early = read <= cut
        torch.testing.assert_close(state[early], other[early])
        assert not torch.allclose(state[~early], other[~early])


def test_raised_samples_stand_for_the_whole_vocabulary(world):
    """Over many draws the sampled normaliser agrees with the full one, and all tokens give exactly the full softmax."""
    import random

    torch.manual_seed(3)
    state = torch.randn(6, world.target.hidden_size)
    full = torch.logsumexp(state @ world.teacher.head_VH.T, -1)
    few = CandidateHead(world.teacher, 40, 30)
    tokens = world.examples[0].tokens_S
    draws = [few.draw(tokens, random.Random(i)) for i in range(400)]
    sums = torch.stack([(state @ c.head_CH.T + c.raise_C).exp().sum(-1) for c in draws]).mean(0)
    torch.testing.assert_close(sums.log(), full, atol=0.05, rtol=0)
    every = CandidateHead(world.teacher, 160, 160).draw(tokens, random.Random(0))
    torch.testing.assert_close(torch.logsumexp(state @ every.head_CH.T + every.raise_C, -1), full)


def test_the_most_frequent_tokens_are_the_draft_vocabulary(world):
    objective = objective_of(world, EAGLE3)
    counts = torch.bincount(torch.cat([e.tokens_S for e in world.examples]), minlength=160)
    kept = objective.vocabulary_F
    assert len(kept) == min(100, int((counts > 0).sum()))
    rest = torch.ones(160, dtype=torch.bool)
    rest[kept] = False
    assert counts[kept].min() >= counts[rest].max()
    assert isinstance(world.teacher, Teacher)
