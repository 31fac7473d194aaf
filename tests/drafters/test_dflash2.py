"""DFlash 2: its two additions, each against DFlash, against a step-by-step walk, and in the target's own distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from drafters.dense import DenseTarget
from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.lattice import CandidateSelector, Lattice, scattered, walk
from drafters.sampling import RequestRandom, SamplingParams, draw
from drafters.verify import verify
from tests.drafters.dflash_cases import B, H, V, config_of, fake_target, tensors_of, write
from tests.drafters.loop_cases import exact_pairs, jobs, loop, prompts, run, tokens_of
from tests.drafters.test_dflash import proposal, rows

CPU = torch.device("cpu")
PARAMS = SamplingParams(0.9, 1.0, 0, 0)


def changed(folder: Path, target: Any, change: dict[str, float], **options: Any) -> DFlash2Drafter:
    """A DFlash 2 drafter whose tensors that end in a key of `change` hold that value, and whose other convolution taps are the
    identity."""
    config = config_of(2)
    tensors = tensors_of(config)
    for name, tensor in tensors.items():
        for ending, value in change.items():
            if name.endswith(ending):
                tensor.fill_(value)
                if ending == "base_kernel":
                    tensor[:, 0] = 1.0
    return DFlash2Drafter(target, options, write(folder, config, tensors))


def first_generation(folder: Path, target: Any) -> DFlashDrafter:
    """DFlash with the tensors that the two have in common."""
    new = ("conv.", "candidate_selector.")
    tensors = {name: t for name, t in tensors_of(config_of(2)).items() if not any(part in name for part in new)}
    return DFlashDrafter(target, {}, write(folder, config_of(1), tensors))


@torch.inference_mode()
def test_identity_convolutions_and_a_zero_selector_are_dflash_exactly(tmp_path):
    target = fake_target()
    old = first_generation(tmp_path / "1", target)
    identity = {"base_kernel": 0.0, "kernel_projection.weight": 0.0}
    new = changed(tmp_path / "2", target, identity | {"successor_codebook": 0.0})
    for drafter in (old, new):
        drafter.observe([0, 1], *rows(2, 11), [11, 6])
    anchors = torch.tensor([old.anchors[0], old.anchors[1]])
    logits = [d.logits(d.predicting(d.states([0, 1], anchors, [7, 4]))) for d in (old, new)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-6)
    assert proposal(old, [0, 1], [7, 4]) == proposal(new, [0, 1], [7, 4])
    assert not torch.allclose(logits[0], _with(tmp_path / "3", {"successor_codebook": 0.0}, anchors), atol=0.1)
    assert proposal(old, [0, 1], [7, 4]) != proposal(_observed(tmp_path / "4", identity), [0, 1], [7, 4])


def _observed(folder: Path, change: dict[str, float]) -> DFlash2Drafter:
    drafter = changed(folder, fake_target(), change)
    drafter.observe([0, 1], *rows(2, 11), [11, 6])
    return drafter


def _with(folder: Path, change: dict[str, float], anchors: Tensor) -> Tensor:
    drafter = _observed(folder, change)
    return drafter.logits(drafter.predicting(drafter.states([0, 1], anchors, [7, 4])))


def random_lattice(
    requests: int, drafts: int, candidates: int, seed: int = 0
) -> tuple[CandidateSelector, tuple[Tensor, ...], Lattice]:
    noise = torch.Generator().manual_seed(seed)
    selector = CandidateSelector(V, H, 6, candidates)
    for parameter in selector.parameters():
        torch.nn.init.normal_(parameter, generator=noise)
    hidden = torch.randn((requests, drafts, H), generator=noise)
    logits = torch.randn((requests, drafts, V), generator=noise)
    inputs = hidden, logits, torch.randint(V, (requests,), generator=noise)
    return selector, inputs, selector.lattice(*inputs)


@torch.inference_mode()
def test_the_walk_over_the_lattice_is_the_step_by_step_walk_greedy_and_drawn():
    selector, (hidden, logits, anchors), lattice = random_lattice(5, 7, 4)
    uniforms = np.random.default_rng(1).random((7, 5)).tolist()
    greedy, drawn = walk(lattice, 0.0, None), walk(lattice, 0.7, uniforms)
    q = scattered(drawn, lattice.tokens_RKC, V)
    assert greedy.probabilities_RKC is None
    assert q is not None
    for r in range(5):
        for path, us in ((greedy, None), (drawn, uniforms)):
            before = int(anchors[r])
            for j in range(7):
                candidates = logits[r, j].topk(4).indices
                gate = selector.hidden_projection.weight @ hidden[r, j]
                bilinear = (selector.predecessor_codebook[before] * gate * selector.successor_codebook[candidates]).sum(-1)
                scores = logits[r, j, candidates] + bilinear
                if us is None:
                    step = int(scores.argmax())
                else:
                    chances = (scores / 0.7).softmax(-1)
                    step = int((chances.double().cumsum(-1) <= us[j][r] * chances.double().sum()).sum())
                    expected = torch.zeros(V).scatter(0, candidates, chances)
                    torch.testing.assert_close(q[r, j], expected, rtol=1e-4, atol=1e-5)
                before = int(candidates[step])
                assert int(path.tokens_RK[r, j]) == before
    torch.testing.assert_close(q.sum(-1), torch.ones(5, 7))


@torch.inference_mode()
def test_the_walk_is_greedy_and_no_search_for_the_best_path():
    """A first step that is best now and leads nowhere is taken all the same."""
    tokens = torch.tensor([[[7, 8], [1, 2]]])
    scores = torch.tensor([[[[1.0, 0.9], [1.0, 0.9]], [[0.0, 0.1], [50.0, 0.0]]]])
    assert walk(Lattice(tokens, scores), 0.0, None).tokens_RK.tolist() == [[7, 2]]


def test_more_candidates_than_tokens_are_all_tokens():
    _, _, lattice = random_lattice(2, 3, 10 * V)
    assert lattice.tokens_RKC.shape == (2, 3, V)
    assert lattice.tokens_RKC.sort(-1).values.equal(torch.arange(V).expand(2, 3, V))


@torch.inference_mode()
def test_a_slot_reads_its_left_neighbour_in_its_own_block_and_nothing_before_it(tmp_path):
    drafter = _observed(tmp_path, {})
    conv = drafter.network.layers[0].attention_conv
    u = torch.randn((2, B, H), generator=torch.Generator().manual_seed(5))
    moved = u.clone()
    moved[0, 3] += 1.0
    change = (conv(moved, lambda z: z) - conv(u, lambda z: z)).abs().amax(-1) > 1e-6
    # Two convolutions of two taps each: a slot reaches itself and the next two.
    assert change.tolist() == [[i in (3, 4, 5) for i in range(B)], [False] * B]
    torch.testing.assert_close(conv(u, lambda z: z)[:, :4], conv(u[:, :4], lambda z: z))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@torch.inference_mode()
def test_a_drawn_draft_comes_with_the_probabilities_it_was_drawn_from(tmp_path, temperature):
    drafter = changed(tmp_path, fake_target(), {}, sample=True, temperature=temperature)
    drafter.observe([0, 1], *rows(2, 8), [8, 3])
    seen = np.zeros((2, V))
    for _ in range(150):
        draft = drafter.propose([0, 1], [1, 3])
        assert draft.probabilities_RKV.shape == (2, 3, V)
        q = draft.probabilities_RKV
        assert bool((q.gather(-1, draft.tokens_RK[..., None]) > 0)[1].all())
        assert bool(((q > 0).sum(-1) <= 5).all())
        for r in range(2):
            seen[r, draft.tokens_RK[r, 0]] += 1
    for r in range(2):
        expected = q[r, 0].double().numpy() * 150
        keep = expected >= 5
        observed = np.append(seen[r][keep], seen[r][~keep].sum())
        wanted = np.append(expected[keep], max(expected[~keep].sum(), 1e-9))
        assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


def test_a_requests_drawn_walk_does_not_depend_on_its_neighbours(tmp_path):
    alone = changed(tmp_path / "a", fake_target(), {}, sample=True, temperature=1.0)
    beside = changed(tmp_path / "b", fake_target(), {}, sample=True, temperature=1.0)
    hidden, tokens = rows(3, 8)
    alone.observe([2], hidden[:1], tokens[:1], [8])
    beside.observe([2, 0], hidden[:2], tokens[:2], [8, 5])
    for budget in (3, 1, 4):
        assert proposal(alone, [2], [budget])[0] == proposal(beside, [2, 0], [budget, 6])[0]


@pytest.mark.parametrize("rule", ["standard", "block"])
@torch.inference_mode()
def test_the_drawn_walk_leaves_the_targets_own_distribution(checkpoint, tmp_path, rule):
    """Pairs of tokens behind an anchor, drawn through drafting and acceptance, against exact probabilities.

    Where the first draft is refused, the pair's second token is drawn from the target, as the next step would.
    """
    folder, model = checkpoint("llama_tied", 8)
    target, text, params = DenseTarget(folder, torch.float32, CPU, slots=64, max_length=32), [2, 3, 4, 2, 3, 5], PARAMS
    config = config_of(2, vocab=8)
    drafter = DFlash2Drafter(target, {"sample": True, "temperature": 0.6}, write(tmp_path, config, tensors_of(config)))
    slots, anchor = list(range(64)), 3
    prefill = target.forward(slots, torch.tensor([text] * 64), [6] * 64, True, drafter.taps)
    target.commit(slots, [6] * 64)
    drafter.observe(slots, prefill.hidden_RTM, torch.tensor([[*text[1:], anchor]] * 64), [6] * 64)
    exact = exact_pairs(model, [*text, anchor], params)
    randoms, seen = [RequestRandom(seed) for seed in slots], np.zeros((8, 8))
    for _ in range(25):
        draft = drafter.propose(slots, [2] * 64)
        rows_RT = torch.cat((torch.full((64, 1), anchor), draft.tokens_RK), dim=1)
        verdict = verify(target.forward(slots, rows_RT, [3] * 64, False).logits_RTV, draft, [params] * 64, randoms, rule)
        for r, (accepted, following) in enumerate(zip(verdict.accepted, verdict.next_tokens, strict=True)):
            drafted = draft.tokens_RK[r].tolist()
            gained = [*drafted[:accepted], following]
            rest = torch.from_numpy(exact[gained[0]])[None]
            seen[gained[0], gained[1] if accepted else int(draw(rest, randoms[r].uniforms(1)))] += 1
    count = int(seen.sum())
    keep = exact * count >= 5
    observed = np.append(seen[keep], seen[~keep].sum())
    expected = np.append(exact[keep], exact[~keep].sum()) * count
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_greedy_requests_stay_greedy_under_a_drawn_walk(checkpoint, tmp_path):
    target = DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=8, max_length=128)
    texts = prompts(4)
    plain = run(loop(target), jobs(texts, 12), 4)
    drafter = changed(tmp_path, target, {}, sample=True, temperature=0.8)
    drawn = run(loop(target, drafter, 4), jobs(texts, 12), 4)
    assert {i: tokens_of(e) for i, e in drawn.items()} == {i: tokens_of(e) for i, e in plain.items()}


def test_options_that_make_no_sense_are_refused_by_name(tmp_path):
    for options, line in [
        ({"sample": 1}, r"options\.sample"),
        ({"sample": True}, r"options\.temperature: None"),
        ({"sample": True, "temperature": -1.0}, r"options\.temperature: -1.0"),
        ({"smaple": True}, r"options\.smaple: DFlash2Drafter has no such option; known: sample, temperature"),
    ]:
        with pytest.raises(ValueError, match=line):
            changed(tmp_path, fake_target(), {}, **options)
    still = changed(tmp_path, fake_target(), {}, sample=True, temperature=0.0)
    still.observe([0], *rows(1, 5), [5])
    assert still.propose([0], [4]).probabilities_RKV is None
