"""Training of DFlash on a tiny target: what is trained is what serves, blocks see what serving sees, and it learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from drafters.dflash import DFlashDrafter
from drafters.train.block_batch import blocks_of, spread
from drafters.train.objective import Example
from tests.drafters.block_world import BLOCK, SLIDING, VOCAB, World, packed_states, perturbed
from tests.drafters.dflash_cases import write


@pytest.fixture(scope="module")
def world(checkpoint: Callable[..., Any]) -> World:
    torch.set_num_threads(1)
    return World(checkpoint)


@torch.inference_mode()
@pytest.mark.parametrize(
    "rule",
    [
        {"attention_bias": True, "num_key_value_heads": 4},
        {"is_causal": False, "dflash_config": {"mask_token_id": 5, "input_embedding_scale": 3.0}},
        SLIDING,
        SLIDING | {"is_causal": False, "num_key_value_heads": 4},
    ],
)
def test_states_of_the_packed_pass_are_those_of_serving_from_the_exported_folder(world, tmp_path, rule):
    objective = world.objective(config={"is_causal": None} | rule, options={"local": "attention_bias" in rule})
    perturbed(objective)
    location = write(tmp_path, *objective.export())
    blocks, together = packed_states(objective, world.examples, BLOCK, 5)
    at = 0
    for example, (anchors, _) in zip(world.examples, blocks.sizes, strict=True):
        drafter = DFlashDrafter(world.target, {}, location)
        seen = 0
        for block in range(at, at + anchors):
            anchor = int(blocks.positions_AB[block, 0])
            rows = example.taps_NM[None, seen:anchor], example.tokens_S[None, seen + 1 : anchor + 1]
            drafter.observe([3], *rows, [anchor - seen])
            states = drafter.states([3], example.tokens_S[None, anchor], [BLOCK - 1])
            torch.testing.assert_close(states[0], together[block], rtol=1e-4, atol=1e-4)
            logits = drafter.logits(states)[0]
            torch.testing.assert_close(logits, together[block] @ world.teacher.head_VH.T, rtol=1e-4, atol=1e-4)
            seen = anchor
        at += anchors
    assert at == len(together) > 10


def test_the_scale_of_the_taps_is_in_the_export_and_nowhere_else(world, tmp_path):
    objective = world.objective()
    config, tensors = objective.export()
    assert {name: t.shape for name, t in tensors.items()} == {n: p.shape for n, p in objective.network.named_parameters()}
    torch.testing.assert_close(tensors["fc.weight"] * objective.scale_M, objective.network.fc.weight)
    assert config["dflash_config"] == {"target_layer_ids": [0, 2], "mask_token_id": VOCAB - 1}
    assert DFlashDrafter(world.target, {}, write(tmp_path, config, tensors)).max_budget == BLOCK - 1


def test_training_goes_on_from_an_exported_folder(world, tmp_path):
    first = world.objective()
    perturbed(first)
    location = write(tmp_path, *first.export())
    second = world.objective(config={"initial": location})
    for (name, a), b in zip(first.network.named_parameters(), second.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\..* has shape"):
        world.objective(config={"initial": location, "intermediate_size": 32})


def test_anchors_are_the_first_token_of_the_answer_and_others_that_have_a_next_one(world):
    example = world.examples[0]
    length, draw = len(example.tokens_S), random.Random(0)
    assert spread(example, 1000, draw).tolist() == list(range(example.prompt, length - 1))
    some = [spread(example, 4, draw).tolist() for _ in range(200)]
    assert all(a[0] == example.prompt and a == sorted(set(a)) and len(a) == 4 for a in some)
    assert {a for anchors in some for a in anchors} == set(range(example.prompt, length - 1))
    short = Example(example.tokens_S[: example.prompt + 1], example.prompt, example.taps_NM, example.final_NH)
    assert len(spread(short, 4, draw)) == 0


def test_labels_are_the_tokens_behind_the_anchor_and_what_the_target_thought_before_each(world):
    blocks = blocks_of(world.examples, BLOCK, 7, VOCAB - 1, random.Random(2))
    expected, block = [], 0
    for example, (anchors, _) in zip(world.examples, blocks.sizes, strict=True):
        for positions in blocks.positions_AB[block : block + anchors].tolist():
            assert blocks.tokens_AB[block].tolist() == [int(example.tokens_S[positions[0]]), *[VOCAB - 1] * (BLOCK - 1)]
            assert int(blocks.before_anchor_A[block]) == int(example.tokens_S[positions[0] - 1])
            inside = [p for p in positions[1:] if p < len(example.tokens_S)]
            expected += [(block * BLOCK + p - positions[0], example, p) for p in inside]
            block += 1
    assert blocks.row_L.tolist() == [row for row, _, _ in expected]
    assert blocks.token_L.tolist() == [int(e.tokens_S[p]) for _, e, p in expected]
    assert blocks.before_L.tolist() == [int(e.tokens_S[p - 1]) for _, e, p in expected]
    assert torch.equal(blocks.said_LH, torch.stack([e.final_NH[p - 1] for _, e, p in expected]))
    assert (blocks.slot_L < BLOCK - 1).any()
    assert len(expected) < (BLOCK - 1) * block  # some blocks reach behind their text


def test_a_block_sees_nothing_at_or_behind_its_anchor_but_the_anchor_token(world):
    objective = world.objective(config={"is_causal": False})
    perturbed(objective)
    example = world.examples[0]
    anchor = int(blocks_of([example], BLOCK, 5, 0, random.Random(3)).positions_AB[2, 0])

    def block(change_taps: int | None = None, change_token: int | None = None) -> torch.Tensor:
        taps_NM, tokens_S = example.taps_NM.clone(), example.tokens_S.clone()
        if change_taps is not None:
            taps_NM[change_taps] += 1.0
        if change_token is not None:
            tokens_S[change_token] = (tokens_S[change_token] + 1) % VOCAB
        changed = Example(tokens_S, example.prompt, taps_NM, example.final_NH)
        with torch.no_grad():
            return packed_states(objective, [changed], BLOCK, 5)[1][2]

    plain = block()
    for i in range(anchor, len(example.taps_NM)):
        assert torch.equal(block(change_taps=i), plain), i
    for i in (anchor - 1, 0):
        assert not torch.equal(block(change_taps=i), plain)
    for i in range(len(example.tokens_S)):
        assert torch.equal(block(change_token=i), plain) == (i != anchor), i


def test_a_local_start_looks_at_the_last_state_before_the_anchor(world):
    near: dict[bool, float] = {}
    for local in (False, True):
        objective = world.objective(config={"num_key_value_heads": 4}, options={"local": local})
        example = max(world.examples, key=lambda e: len(e.tokens_S))
        blocks, plain = packed_states(objective, [example], BLOCK, 5)
        anchor = int(blocks.positions_AB[-1, 0])

        def moved(at: int, objective: Any = objective, example: Example = example, plain: torch.Tensor = plain) -> float:
            taps_NM = example.taps_NM.clone()
            taps_NM[at] = example.taps_NM[at - 3]
            changed = Example(example.tokens_S, example.prompt, taps_NM, example.final_NH)
            return float((packed_states(objective, [changed], BLOCK, 5)[1][-1] - plain[-1]).norm())

        with torch.no_grad():
            far = sum(moved(at) for at in range(anchor - 16, anchor - 8)) / 8
            near[local] = moved(anchor - 1) / far
    assert near[True] > 2 * near[False]
    assert near[True] > 1.4  # far rows are moved too: a text of 30 tokens has few


def test_a_local_start_draws_queries_to_rows_that_say_something_and_away_from_masks(world):
    objective = world.objective(options={"local": True})
    network, teacher = objective.network, world.teacher
    taps_NM = torch.cat([example.taps_NM[1:] for example in world.examples]) / objective.scale_M
    for layer in network.layers:
        attention, norm = layer.self_attn, layer.input_layernorm
        token_FH, mask_1H = norm(teacher.embedding_VH[teacher.frequent_V]), norm(teacher.embedding_VH[VOCAB - 1])[None]
        context_NH = network.hidden_norm(network.fc(taps_NM))

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(-1, (-1, 12))

        query_D = heads(attention.q_proj(torch.cat((token_FH, mask_1H)))).mean((0, 1))
        for rows, sign in ((context_NH, 1), (token_FH, 1), (mask_1H, -1)):
            agreement = sign * (heads(attention.k_proj(rows)) @ query_D)
            assert agreement.mean() > 1


def test_a_causal_slot_is_the_same_in_every_width_of_block(world):
    objective = world.objective()
    perturbed(objective)
    with torch.no_grad():
        narrow, wide = (packed_states(objective, world.examples, width, 4)[1] for width in (3, BLOCK))
    torch.testing.assert_close(wide[:, :3], narrow, rtol=1e-5, atol=1e-5)


def test_the_curriculum_widens_blocks_as_training_goes_on(world):
    objective = world.objective()
    shown = [set(objective.loss(world.examples, p, random.Random(0))[1]) for p in (0.0, 0.29, 0.3, 0.99)]
    slots = [{name for name in names if name.startswith("accuracy_") and name[-1].isdigit()} for names in shown]
    assert [len(names) for names in slots] == [1, 1, BLOCK - 1, BLOCK - 1]
    for wrong, says in (
        ([{"start": 0.1, "block": 2, "anchors": 1}], "begin at 0"),
        ([{"start": 0, "block": 7, "anchors": 1}], "7"),
    ):
        with pytest.raises(ValueError, match=says):
            world.objective(options={"curriculum": wrong})


def test_a_batch_without_a_single_anchor_costs_nothing_and_has_a_gradient(world):
    example = world.examples[0]
    n = example.prompt + 1
    short = Example(example.tokens_S[:n], example.prompt, example.taps_NM[: n - 1], example.final_NH[: n - 1])
    objective = world.objective()
    loss, _ = objective.loss([short, short], 0.9, random.Random(0))
    loss.backward()
    assert float(loss.detach()) == 0


def test_it_learns_and_what_it_learned_is_accepted_in_serving(world, tmp_path):
    objective = world.objective(options={"hard": 1.0})  # a random target's own distribution is nearly flat
    before = world.accepted(DFlashDrafter(world.target, {}, write(tmp_path / "before", *objective.export())))
    losses = world.train(objective, 90)
    assert losses[-1] < 0.3 * losses[0]
    after = world.accepted(DFlashDrafter(world.target, {}, write(tmp_path / "after", *objective.export())))
    assert before < 0.3
    assert after > 1.5
