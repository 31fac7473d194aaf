"""xPress: enough Jacobi passes are left-to-right decoding, and one pass is one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafters.xpress import XPressDrafter
from tests.drafters.dflash_cases import B, H, V, config_of, fake_target, naive_hidden, tensors_of, write
from tests.drafters.test_dflash import proposal, rows

RANK = 6
SHAPES = {
    "w1": (V, RANK),
    "down_h": (RANK, H),
    "down_g": (RANK, H),
    "in_proj": (RANK, 3 * RANK),
    "mix.L": (RANK, B, B),
    "mlp.gate_proj": (2 * RANK, RANK),
    "mlp.up_proj": (2 * RANK, RANK),
    "mlp.down_proj": (RANK, 2 * RANK),
    "w2": (V, RANK),
}
RENAMED = {
    "w1": "token_embed",
    "mix.L": "mix_l",
    "mlp.gate_proj": "mlp_gate",
    "mlp.up_proj": "mlp_up",
    "mlp.down_proj": "mlp_down",
    "w2": "readout",
}


def refiner(vocab: int = V) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(9)
    tensors = {name: torch.randn(shape, generator=noise) * 1.5 / shape[-1] ** 0.5 for name, shape in SHAPES.items()}
    return tensors | {name: torch.randn((vocab, RANK), generator=noise) for name in ("w1", "w2")}


def made(
    folder: Path, passes: int, topc: int = 0, target: Any = None, renamed: bool = False, rule: str = "full", vocab: int = V
) -> XPressDrafter:
    sizes = {"xpress_rank": RANK, "xpress_mlp_hidden": 2 * RANK, "xpress_num_passes": passes, "xpress_topc": topc}
    prefix = "refiner_head." if renamed else "xpress_head."
    named = {
        prefix + (RENAMED.get(n, n) if renamed else n) + ".weight" * (not renamed and n != "mix.L"): t
        for n, t in refiner(vocab).items()
    }
    config = config_of(1, rule, vocab)
    return XPressDrafter(target or fake_target(), {}, write(folder, config | sizes, tensors_of(config) | named))


def naive(taps_SM: Tensor, before: int, anchor: int, drafts: int, passes: int | None, topc: int) -> list[int]:
    """Jacobi passes slot by slot, or with null left to right."""
    w, config, target = refiner(), config_of(1), fake_target()
    ids = [anchor, *[config["dflash_config"]["mask_token_id"]] * drafts]
    hidden = naive_hidden(config, tensors_of(config), taps_SM, target.embedding[ids])
    base = hidden @ target.matrix.T
    g = hidden.mean(0)

    def logits(slot: int, previous: list[int]) -> Tensor:
        known = [torch.cat((w["down_h"] @ hidden[k], w["down_g"] @ g, w["w1"][previous[k]])) for k in range(slot + 1)]
        z = [w["in_proj"] @ one for one in known]
        mixed = z[slot] + sum(w["mix.L"][:, slot, j] * z[j] for j in range(slot + 1))
        gate = w["mlp.gate_proj"] @ mixed
        final = mixed + w["mlp.down_proj"] @ (gate * gate.sigmoid() * (w["mlp.up_proj"] @ mixed))
        scores = base[slot] + w["w2"] @ final
        if topc:
            scores[base[slot] < base[slot].topk(topc).values[-1]] = float("-inf")
        return scores

    if passes is None:
        text = [before, anchor]
        for slot in range(1, drafts + 1):
            text.append(int(logits(slot, text).argmax()))
        return text[2:]
    tokens = base[1:].argmax(-1).tolist()
    for _ in range(passes):
        text = [before, anchor, *tokens]
        tokens = [int(logits(slot, text).argmax()) for slot in range(1, drafts + 1)]
    return tokens


@pytest.mark.parametrize(("passes", "topc"), [(1, 0), (2, 0), (2, 4)])
@pytest.mark.parametrize("renamed", [False, True])
@torch.inference_mode()
def test_every_pass_is_that_of_the_naive_rule_under_both_published_namings(tmp_path, passes, topc, renamed):
    drafter = made(tmp_path, passes, topc, renamed=renamed)
    hidden, tokens = rows(2, 10)
    drafter.observe([2, 0], hidden, tokens, [10, 4])
    expected = [
        naive(hidden[0], int(tokens[0, 8]), int(tokens[0, 9]), 7, passes, topc),
        naive(hidden[1, :4], int(tokens[1, 2]), int(tokens[1, 3]), 4, passes, topc),
    ]
    assert proposal(drafter, [2, 0], [7, 4]) == expected
    after, following = rows(1, 1, seed=8)
    drafter.observe([0], after, following, [1])
    context = torch.cat((hidden[1, :4], after[0]))
    assert proposal(drafter, [0], [3])[0] == naive(context, int(tokens[1, 3]), int(following[0, 0]), 3, passes, topc)


@torch.inference_mode()
def test_as_many_passes_as_drafts_are_left_to_right_decoding(tmp_path):
    hidden, tokens = rows(1, 10)
    drafts = {}
    for passes in (1, 7):
        drafter = made(tmp_path / str(passes), passes)
        drafter.observe([1], hidden, tokens, [10])
        drafts[passes] = proposal(drafter, [1], [7])[0]
    assert drafts[7] == naive(hidden[0], int(tokens[0, 8]), int(tokens[0, 9]), 7, None, 0)
    assert drafts[1] != drafts[7]
