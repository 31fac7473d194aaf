"""Training of DFlash 2, DSpark and xPress from one trained DFlash: they begin as it was, serve what was trained, and learn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.dspark import DSparkDrafter
from drafters.serving import load_dotted
from drafters.train.block_batch import Blocks
from drafters.train.dflash import Said, published_config
from drafters.train.dflash2 import DFlash2Objective, injected
from drafters.train.dspark import DSparkObjective
from drafters.train.recipe import read_recipe
from drafters.train.soft import Candidates
from drafters.train.xpress import XPressObjective
from drafters.xpress import XPressDrafter
from tests.drafters.block_world import BLOCK, VOCAB, World, packed_states, perturbed
from tests.drafters.dflash_cases import write

RANK = 6
CONV = {"mask_token_id": VOCAB - 1, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": RANK, "selector_top_k": 8}
XPRESS = {"xpress_rank": RANK, "xpress_mlp_hidden": 8, "xpress_num_passes": BLOCK, "xpress_topc": 0}
FAMILY: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "dflash2": (
        DFlash2Objective,
        DFlash2Drafter,
        {"dflash_config": CONV},
        {"selector": 0.3, "selector_weight": 1.0, "inject": False},
    ),
    "dspark": (DSparkObjective, DSparkDrafter, {"markov_rank": RANK}, {"confidence_weight": 0.5}),
    "xpress": (XPressObjective, XPressDrafter, XPRESS, {}),
}


@pytest.fixture(scope="module")
def world(checkpoint: Callable[..., Any]) -> World:
    torch.set_num_threads(1)
    return World(checkpoint)


@pytest.fixture(scope="module")
def backbone(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A DFlash trained for a moment."""
    objective = world.objective(options={"hard": 1.0})
    world.train(objective, 30)
    return write(tmp_path_factory.mktemp("backbone"), *objective.export())


def member(world: World, name: str, backbone: str | None, **options: Any) -> Any:
    kind, _, config, more = FAMILY[name]
    return world.objective(kind, config | {"initial": backbone}, more | options)


@pytest.mark.parametrize("name", ["dflash_start", "dflash", *FAMILY])
def test_the_recipe_of_every_member_makes_a_drafter_below_20_mb(name):
    recipe = read_recipe(name, [])
    kind = load_dotted(recipe.objective)
    target: Any = SimpleNamespace(hidden_size=576, vocab_size=49152, num_layers=30)
    with torch.device("meta"):
        network = kind.build(SimpleNamespace(), published_config(recipe.config, target, ""), target)
    sizes = {n: p.numel() for n, p in network.named_parameters()}
    for table in (kind.over_embedding, kind.over_head):
        if table is not None:
            sizes[table] *= 49152 / 576  # a row per token instead of a row per channel
    assert 15e6 < 2 * sum(sizes.values()) < 20e6


@torch.inference_mode()
@pytest.mark.parametrize("name", list(FAMILY))
def test_a_member_begins_as_the_dflash_that_it_comes_from(world, backbone, tmp_path, name):
    location = write(tmp_path, *member(world, name, backbone).export())
    texts = world.examples[:2]
    both = [FAMILY[name][1](world.target, {}, location), DFlashDrafter(world.target, {}, backbone)]
    for drafter in both:
        for slot, example in enumerate(texts):
            rows = example.taps_NM[None, : example.prompt], example.tokens_S[None, 1 : example.prompt + 1]
            drafter.observe([slot], *rows, [example.prompt])
    ours, plain = (drafter.propose([0, 1], [BLOCK - 1] * 2).tokens_RK for drafter in both)
    assert torch.equal(ours, plain)


def served(world: World, drafter: Any, example: Any, anchor: int, widths: int = BLOCK) -> Tensor:
    """States [B, H] of a block in serving, the drafter left ready to choose."""
    drafter.release(0)
    drafter.observe([0], example.taps_NM[None, :anchor], example.tokens_S[None, 1 : anchor + 1], [anchor])
    states: Tensor = drafter.states([0], example.tokens_S[None, anchor], [widths - 1])
    return states


def blocks_in_order(world: World, blocks: Blocks) -> list[tuple[Any, int]]:
    """(example, anchor) of each block."""
    sizes = [n for n, _ in blocks.sizes]
    owners = [e for e, n in zip(world.examples, sizes, strict=True) for _ in range(n)]
    return list(zip(owners, blocks.positions_AB[:, 0].tolist(), strict=True))


def whole_vocabulary(objective: Any, blocks: Blocks, states_ABH: Tensor) -> Said:
    """Every token a candidate, in the order of ids."""
    candidates = Candidates(objective.teacher.head_VH, torch.zeros(VOCAB))
    logits = objective.spoken(blocks, states_ABH) @ candidates.head_CH.T
    return Said(candidates, logits, torch.zeros(len(logits)), candidates.teacher(blocks.said_LH))


@torch.inference_mode()
def test_scores_of_the_selector_in_training_are_those_of_the_lattice_in_serving(world, backbone, tmp_path):
    objective = member(world, "dflash2", backbone)
    perturbed(objective)
    drafter = DFlash2Drafter(world.target, {}, write(tmp_path, *objective.export()))
    blocks, states_ABH = packed_states(objective, world.examples, BLOCK, 5)
    said = whole_vocabulary(objective, blocks, states_ABH)
    columns_LK = said.logits_LC.topk(8).indices
    scores_LK = objective.scores(blocks, states_ABH, said, columns_LK)
    bilinear = 0.0
    for block, (example, anchor) in enumerate(blocks_in_order(world, blocks)):
        states = served(world, drafter, example, anchor)
        torch.testing.assert_close(states[0], states_ABH[block], rtol=1e-4, atol=1e-4)
        hidden_RKH = drafter.predicting(states)
        rows = (blocks.row_L // BLOCK == block).nonzero().flatten()
        before = blocks.before_L[rows][None, :, None]
        k = len(rows)
        followed = drafter.network.candidate_selector.bilinear(hidden_RKH[:, :k], before, columns_LK[rows][None])[0, :, 0]
        expected = drafter.logits(hidden_RKH)[0, :k].gather(1, columns_LK[rows]) + followed
        torch.testing.assert_close(scores_LK[rows], expected, rtol=1e-4, atol=1e-4)
        bilinear += float(followed.abs().mean())
    assert bilinear > 0.1


def test_the_gold_candidate_is_injected_where_the_block_does_not_have_it():
    logits = torch.tensor([[5.0, 4.0, 3.0, 0.0], [5.0, 4.0, 3.0, 0.0]])
    teacher = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]])
    said = Said(Candidates(torch.empty(4, 1), torch.zeros(4)), logits, torch.zeros(2), teacher)
    columns, place, there = injected(said, 2)
    assert columns.tolist() == [[0, 1], [0, 3]]
    assert place.tolist() == [1, 1]
    assert there.tolist() == [True, False]


@pytest.mark.parametrize("inject", [False, True])
def test_a_slot_whose_token_the_block_does_not_have_teaches_the_selector_only_where_it_is_injected(world, backbone, inject):
    objective = member(world, "dflash2", backbone, inject=inject)
    blocks, states_ABH = packed_states(objective, world.examples, BLOCK, 5)
    said = whole_vocabulary(objective, blocks, states_ABH.detach())
    gold_L1 = said.gold.unsqueeze(-1)
    without = said.logits_LC.scatter(1, gold_L1, float(said.logits_LC.min()) - 1.0)  # every gold is the block's last choice
    loss, shown = objective.further(blocks, states_ABH.detach(), replace(said, logits_LC=without), 1.0)
    assert shown["recall"] == 0.0
    assert bool(loss > 0) is inject


@torch.inference_mode()
def test_what_dspark_was_taught_to_say_is_what_it_says(world, backbone, tmp_path):
    """Teacher-forced by the drafts themselves: the true text is replaced by what serving drafted."""
    objective = member(world, "dspark", backbone)
    perturbed(objective)
    with torch.no_grad():
        objective.network.markov_head.markov_w2.weight.mul_(5)
    drafter = DSparkDrafter(world.target, {}, write(tmp_path, *objective.export()))
    blocks, states_ABH = packed_states(objective, world.examples, BLOCK, 5)
    forced = _forced(world, drafter, blocks)
    said = whole_vocabulary(objective, forced, states_ABH)
    assert torch.equal(said.logits_LC.argmax(-1), forced.token_L)
    plain = F.linear(states_ABH.flatten(0, 1)[blocks.row_L], objective.teacher.head_VH).argmax(-1)
    assert (plain != forced.token_L).float().mean() > 0.1


@torch.inference_mode()
def test_what_the_refiner_was_taught_to_say_is_what_it_says(world, backbone, tmp_path):
    objective = member(world, "xpress", backbone)
    perturbed(objective)
    with torch.no_grad():
        objective.network.refiner.w2.mul_(5)
    drafter = XPressDrafter(world.target, {}, write(tmp_path, *objective.export()))
    blocks, states_ABH = packed_states(objective, world.examples, BLOCK, 5)
    forced = _forced(world, drafter, blocks)
    assert torch.equal(whole_vocabulary(objective, forced, states_ABH).logits_LC.argmax(-1), forced.token_L)
    plain = F.linear(states_ABH.flatten(0, 1)[blocks.row_L], objective.teacher.head_VH).argmax(-1)
    assert (plain != forced.token_L).float().mean() > 0.1


def _forced(world: World, drafter: Any, blocks: Blocks) -> Blocks:
    """The same blocks with what the drafter proposes as their text."""
    token_L, before_L = blocks.token_L.clone(), blocks.before_L.clone()
    for block, (example, anchor) in enumerate(blocks_in_order(world, blocks)):
        served(world, drafter, example, anchor)
        drafted = drafter.propose([0], [BLOCK - 1]).tokens_RK[0]
        for row in (blocks.row_L // BLOCK == block).nonzero().flatten().tolist():
            slot = int(blocks.slot_L[row])
            token_L[row] = drafted[slot - 1]
            before_L[row] = drafted[slot - 2] if slot > 1 else example.tokens_S[anchor]
    fields = {name: getattr(blocks, name) for name in Blocks.__slots__}
    return Blocks(**fields | {"token_L": token_L, "before_L": before_L})


@pytest.fixture(scope="module")
def learned(world: World, backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, ...]]:
    """`learned(name)`: a member trained once for all tests, its losses, and its exported folder."""
    made: dict[str, tuple[Any, ...]] = {}

    def once(name: str) -> tuple[Any, ...]:
        if name not in made:
            objective = member(world, name, backbone, hard=1.0, curriculum=[{"start": 0.0, "block": BLOCK, "anchors": 12}])
            losses = world.train(objective, 25, rate=3e-3)
            made[name] = objective, losses, write(tmp_path_factory.mktemp(name), *objective.export())
        return made[name]

    return once


@pytest.mark.parametrize("name", list(FAMILY))
def test_a_member_learns_from_the_backbone_and_is_accepted_more(world, backbone, learned, name):
    before = world.accepted(DFlashDrafter(world.target, {}, backbone))
    objective, losses, location = learned(name)
    after = world.accepted(FAMILY[name][1](world.target, {}, location))
    assert losses[-1] < losses[0]
    assert after > before + 0.3
    still = [n for n, p in objective.network.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def shift_block(drafter: Any, by: int) -> None:
    """The block is turned as if it stood `by` positions away; committed rows stay where they are."""
    states, rotation = drafter.states, drafter.cache.rotation

    def shifted(*arguments: Any) -> Tensor:
        drafter.cache.rotation = lambda positions: rotation(positions + by)
        out: Tensor = states(*arguments)
        drafter.cache.rotation = rotation
        return out

    drafter.states = shifted


@pytest.mark.parametrize("name", list(FAMILY))
def test_a_shift_by_one_of_taps_or_positions_costs_a_member_acceptance(world, learned, name):
    def accepted(change: Callable[[Any], None]) -> float:
        drafter = FAMILY[name][1](world.target, {}, learned(name)[2])
        change(drafter)
        return world.accepted(drafter)

    right = accepted(lambda drafter: None)
    by_taps = {taps: accepted(lambda drafter, taps=taps: setattr(drafter, "taps", taps)) for taps in ((0, 1), (1, 2))}
    assert max(by_taps.values()) < 0.8 * right, by_taps
    by_step = {by: accepted(lambda drafter, by=by: shift_block(drafter, by)) for by in (-1, 1)}
    assert max(by_step.values()) < 0.8 * right, by_step


def test_the_confidence_learns_how_often_drafts_are_right_and_moves_nothing_else(world, backbone):
    objective = member(world, "dspark", backbone)
    blocks, states_ABH = packed_states(objective, world.examples, BLOCK, 5)
    said = objective.say(blocks, objective.spoken(blocks, states_ABH), random.Random(0))
    loss, _ = objective.further(blocks, states_ABH, said, 0.5)
    loss.backward()
    moved = {name for name, p in objective.network.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {"confidence_head.proj.weight", "confidence_head.proj.bias"}
