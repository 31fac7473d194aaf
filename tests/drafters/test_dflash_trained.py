"""DFlash trained for a minute's fraction on a tiny target's own texts: training and serving agree, and a shift of one anywhere
costs acceptance. A drafter that never learned cannot show either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from drafters.block_cache import visible
from drafters.dense import DenseTarget
from drafters.dflash import DFlashDrafter
from drafters.dflash_config import DFlashConfig
from drafters.dflash_network import DFlashNetwork
from drafters.layers import Rotary, inverse_frequencies
from tests.drafters.dflash_cases import config_of, write
from tests.drafters.loop_cases import generated, jobs, loop, prompts, run

CPU = torch.device("cpu")
WIDTH, LIMIT = 4, 30


def packed(network: DFlashNetwork, target: DenseTarget, taps_SM: Tensor, tokens_S: Tensor, anchors_N: Tensor) -> Tensor:
    """Logits [N, WIDTH - 1, V] of blocks at several anchors of one text in one pass. Each sees what is before its anchor."""
    config = network.config
    positions_NB = anchors_N[:, None] + torch.arange(WIDTH)
    rotary = Rotary(*inverse_frequencies(config.rope, config.head_dim), 256, torch.float32)

    def tables(positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary.cos_LD[positions].unsqueeze(-2), rotary.sin_LD[positions].unsqueeze(-2)

    length = len(taps_SM)
    context = network.context(taps_SM, tables(torch.arange(length)))
    before_NBS = (torch.arange(length) < anchors_N[:, None, None]).expand(-1, WIDTH, -1)
    inside_NBB = visible(positions_NB, torch.arange(256), anchors_N + WIDTH, False, None)
    inside_NBB = inside_NBB.gather(2, positions_NB[:, None, :].expand(-1, WIDTH, -1))
    mask_N1BS = torch.cat((before_NBS, inside_NBB), dim=-1).unsqueeze(1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (
            torch.cat((c.expand(len(q), -1, -1, -1), b), dim=1) for c, b in zip(context[layer], (k, v), strict=True)
        )
        parts = (x.transpose(1, 2) for x in (q, keys, values))
        return F.scaled_dot_product_attention(*parts, attn_mask=mask_N1BS, enable_gqa=True).transpose(1, 2)

    masks = torch.full((len(anchors_N), WIDTH - 1), config.mask_token)
    block = target.embedding[torch.cat((tokens_S[anchors_N, None], masks), dim=1)]
    return network.transform(target.head(network(block, tables(positions_NB), attend)[:, 1:]))


@pytest.fixture(scope="module")
def trained(checkpoint: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """(target, network, config, folder, texts, (taps, tokens, first anchor) of each text)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder, model = checkpoint("llama")
    target = DenseTarget(folder, torch.float32, CPU, slots=8, max_length=128)
    texts = prompts(4)
    answers = generated(model, texts, LIMIT, eos=None)
    config = config_of(1) | {"block_size": WIDTH}
    network = DFlashNetwork(DFlashConfig.read(config, 3))
    seen = [_seen(target, [*text, *answer], len(text)) for text, answer in zip(texts, answers, strict=True)]
    head = torch.nn.Linear(48, 160, bias=False)
    head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
    teacher = _Teacher(target.embedding.clone(), head)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.0)
    for _ in range(45):
        for taps, tokens, first in seen:
            anchors = torch.arange(first, len(tokens) - WIDTH)
            logits = packed(network, teacher, taps, tokens, anchors)
            wanted = tokens[anchors[:, None] + torch.arange(1, WIDTH)]
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()
            optimizer.step()
    location = tmp_path_factory.mktemp("trained")
    write(location, config, {name: p.detach() for name, p in network.state_dict().items()})
    return target, network, teacher, config, location, texts, seen


class _Teacher:
    """The target's table and head where autograd may pass."""

    def __init__(self, embedding: Tensor, head: Callable[[Tensor], Tensor]) -> None:
        self.embedding, self.head = embedding, head


def _seen(target: DenseTarget, text: list[int], first: int) -> tuple[Tensor, Tensor, int]:
    out = target.forward([0], torch.tensor([text]), [len(text)], False, (0, 2))
    return out.hidden_RTM[0].clone(), torch.tensor(text), first


def accepted(target: DenseTarget, drafter: DFlashDrafter, texts: list[Any]) -> float:
    """Accepted drafts per step of the trained texts through the loop, the target's state cleared before and after."""
    for slot in range(target.slots):
        target.release(slot)
    engine = loop(target, drafter, WIDTH - 1)
    run(engine, jobs(texts, LIMIT), len(texts))
    return engine.totals.accepted / engine.totals.verify_steps


@torch.inference_mode()
def test_logits_of_the_packed_training_pass_are_those_of_serving(trained):
    target, network, teacher, _, location, _, seen = trained
    drafter = DFlashDrafter(target, {}, str(location))
    taps, tokens, first = seen[1]
    anchors = torch.arange(first, len(tokens) - WIDTH, 5)
    together = packed(network, teacher, taps, tokens, anchors)
    at = 0
    for anchor, logits in zip(anchors.tolist(), together, strict=True):
        drafter.observe([3], taps[None, at:anchor], tokens[None, at + 1 : anchor + 1], [anchor - at])
        at = anchor
        states = drafter.states([3], tokens[None, anchor], [WIDTH - 1])
        torch.testing.assert_close(drafter.logits(drafter.predicting(states))[0], logits, rtol=1e-4, atol=1e-4)


def test_a_shift_by_one_of_taps_positions_or_slots_costs_acceptance(trained, tmp_path, monkeypatch):
    target, _, _, config, location, texts, _ = trained
    right = accepted(target, DFlashDrafter(target, {}, str(location)), texts)
    assert right > 1.5

    def of(name: str, **inner: Any) -> DFlashDrafter:
        family = config["dflash_config"] | inner
        tensors = load_file(location / "model.safetensors")
        return DFlashDrafter(target, {}, write(tmp_path / name, config | {"dflash_config": family}, tensors))

    assert accepted(target, of("taps", target_layer_ids=[1, 2]), texts) < 0.8 * right
    assert accepted(target, of("slots", sample_from_anchor=True), texts) < 0.8 * right
    shifted = of("positions")
    inner = shifted.states

    def states(slots: Any, anchors_R: Tensor, lengths: Any) -> Tensor:
        rotation = shifted.cache.rotation
        monkeypatch.setattr(shifted.cache, "rotation", lambda positions: rotation(positions + 1))
        out = inner(slots, anchors_R, lengths)
        monkeypatch.setattr(shifted.cache, "rotation", rotation)
        return out

    monkeypatch.setattr(shifted, "states", states)
    assert accepted(target, shifted, texts) < 0.95 * right
