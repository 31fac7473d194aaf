"""DSpark: the step-by-step rule written naively, greedy, drawn and cut by confidence; and no text changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafters.dense import DenseTarget
from drafters.dspark import DSparkDrafter
from tests.drafters.dflash_cases import CPU, B, H, V, config_of, fake_target, naive_hidden, tensors_of, write
from tests.drafters.loop_cases import generated, jobs, loop, prompts, run, tokens_of
from tests.drafters.test_dflash import proposal, rows

RANK = 6


def checkpoint_of(rule: str = "full", vocab: int = V) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = config_of(1, rule, vocab) | {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": RANK,
        "enable_confidence_head": True,
    }
    noise = torch.Generator().manual_seed(9)
    more = {f"markov_head.markov_w{i}.weight": torch.randn((vocab, RANK), generator=noise) for i in (1, 2)}
    more["confidence_head.proj.weight"] = torch.randn((1, H + RANK), generator=noise) * 0.3
    more["confidence_head.proj.bias"] = torch.tensor([2.0])
    return config, tensors_of(config) | more


def made(folder: Path, target: Any = None, rule: str = "full", vocab: int = V, **options: Any) -> DSparkDrafter:
    return DSparkDrafter(target or fake_target(), options, write(folder, *checkpoint_of(rule, vocab)))


def naive(taps_SM: Tensor, anchor: int, drafts: int) -> tuple[list[int], list[float]]:
    """Tokens and their survivals, one after the other; the block is the anchor and `drafts - 1` masks."""
    config, t = checkpoint_of()
    target = fake_target()
    ids = [anchor, *[config["dflash_config"]["mask_token_id"]] * (drafts - 1)]
    before, survival, tokens, survivals = anchor, 1.0, [], []
    for h_H in naive_hidden(config, t, taps_SM, target.embedding[ids]):
        code = t["markov_head.markov_w1.weight"][before]
        survival *= float(torch.sigmoid(t["confidence_head.proj.weight"][0] @ torch.cat((h_H, code)) + 2.0))
        before = int((target.matrix @ h_H + t["markov_head.markov_w2.weight"] @ code).argmax())
        tokens.append(before)
        survivals.append(survival)
    return tokens, survivals


@torch.inference_mode()
def test_drafts_and_their_cut_are_those_of_the_naive_rule(tmp_path):
    hidden, tokens = rows(3, 10)
    counts, budgets = [10, 1, 6], [B, 3, 5]
    full = made(tmp_path / "full")
    full.observe([2, 0, 1], hidden, tokens, counts)
    expected = [naive(hidden[r, :n], int(tokens[r, n - 1]), b) for r, (n, b) in enumerate(zip(counts, budgets, strict=True))]
    assert proposal(full, [2, 0, 1], budgets) == [drafted for drafted, _ in expected]
    least = sorted(s for _, survivals in expected for s in survivals)[8] + 1e-6
    cut = made(tmp_path / "cut", confidence=least)
    cut.observe([2, 0, 1], hidden, tokens, counts)
    wanted = [drafted[: sum(s >= least for s in survivals)] for drafted, survivals in expected]
    assert proposal(cut, [2, 0, 1], budgets) == wanted
    assert 0 < sum(map(len, wanted)) < sum(budgets)


def test_a_block_of_n_slots_drafts_n_tokens_and_no_more(tmp_path):
    drafter = made(tmp_path)
    drafter.observe([0], *rows(1, 4), [4])
    assert len(proposal(drafter, [0], [B])[0]) == B
    with pytest.raises(ValueError, match=r"draft_budget: 9 drafts .* set draft_budget to 8 or less"):
        drafter.propose([0], [B + 1])


@torch.inference_mode()
def test_a_drawn_draft_is_drawn_from_the_probabilities_it_carries(tmp_path):
    drafter = made(tmp_path, sample=True, temperature=0.8)
    hidden, tokens = rows(1, 6)
    drafter.observe([0], hidden, tokens, [6])
    config, t = checkpoint_of()
    draft = drafter.propose([0], [4])
    ids = [int(tokens[0, -1]), *[config["dflash_config"]["mask_token_id"]] * 3]
    states = naive_hidden(config, t, hidden[0], fake_target().embedding[ids])
    before = ids[0]
    for k, h_H in enumerate(states):
        bias = t["markov_head.markov_w2.weight"] @ t["markov_head.markov_w1.weight"][before]
        expected = ((fake_target().matrix @ h_H + bias) / 0.8).softmax(-1)
        torch.testing.assert_close(draft.probabilities_RKV[0, k], expected, rtol=1e-3, atol=1e-5)
        before = int(draft.tokens_RK[0, k])


@pytest.mark.parametrize("options", [{"confidence": 0.6}, {"sample": True, "temperature": 0.7}])
def test_greedy_output_of_cut_and_of_drawn_drafts_is_that_of_plain_decoding(checkpoint, tmp_path, options):
    texts = prompts(6)
    target = DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=8, max_length=128)
    out = run(loop(target, made(tmp_path, target, **options), 5), jobs(texts, 12), 6)
    assert [tokens_of(out[str(i)]) for i in range(6)] == generated(checkpoint("llama")[1], texts, 12, eos=None)


def test_what_is_not_implemented_is_refused_by_name(tmp_path):
    config, tensors = checkpoint_of()
    with pytest.raises(ValueError, match="markov_head_type 'rnn'"):
        DSparkDrafter(fake_target(), {}, write(tmp_path, config | {"markov_head_type": "rnn"}, tensors))
    with pytest.raises(ValueError, match=r"options\.confidence: 1\.5"):
        made(tmp_path, confidence=1.5)
    bare = {name: t for name, t in tensors.items() if "confidence" not in name}
    location = write(tmp_path, config | {"enable_confidence_head": False}, bare)
    with pytest.raises(ValueError, match="no confidence head"):
        DSparkDrafter(fake_target(), {"confidence": 0.5}, location)
