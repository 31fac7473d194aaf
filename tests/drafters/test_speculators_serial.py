"""EAGLE-3 and MTP against `speculators`, which trains and publishes such drafters: its models, saved by itself and read by us.

Its forward pass is that of training, over whole texts without a cache; row i of pass k reads what serving reads for draft k + 1
behind x_{i+1}. So a text, and behind it what was drafted, gives the logits of every draft at one row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from speculators import Eagle3DraftModel, Eagle3SpeculatorConfig, MTPDraftModel, MTPSpeculatorConfig, SpeculatorsConfig
from speculators.config import VerifierConfig
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
from speculators.convert.mtp.converter import MTPConverter
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3_5TextConfig, Qwen3Config, Qwen3NextConfig

from drafters.eagle3 import Eagle3Drafter
from drafters.mtp import MtpDrafter
from tests.drafters import test_eagle3, test_mtp
from tests.drafters.serial_cases import VOCAB, assert_cycles_match, states_of, target_of

H, DRAFT_VOCAB, TAPS = test_mtp.H, 64, [1, 2, 3]
SIZES = test_mtp.SIZES | {"attn_implementation": "eager"}
HYBRID = {**SIZES, "layer_types": ["full_attention"], "rope_parameters": test_mtp.PARTIAL}
MTP_LAYERS = {
    "qwen3": Qwen3Config(**SIZES),
    "qwen3_next": Qwen3NextConfig(**HYBRID, num_experts=0),
    "qwen3_5": Qwen3_5TextConfig(**HYBRID),
}
EAGLE3_LAYERS = {"llama": LlamaConfig(**SIZES), "qwen3": Qwen3Config(**SIZES)}
VARIANTS = ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"]


def proposing(algorithm: str, tokens: int) -> SpeculatorsConfig:
    """What every speculators checkpoint says of itself; no verifier is named, so that none is looked for."""
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


@torch.no_grad()
def randomise(drafter: PreTrainedModel, target: PreTrainedModel) -> None:
    """Random weights, norms with uneven scales, and the target's embedding."""
    torch.manual_seed(0)
    for name, parameter in drafter.named_parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 1:
            one = type(drafter.get_submodule(name.rpartition(".")[0])).__name__ not in ("Qwen3NextRMSNorm", "Qwen3_5RMSNorm")
            parameter.copy_(one + 0.3 * torch.randn_like(parameter))
        else:
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
    drafter.eval()


class Watched:
    """Inputs and outputs of the head, pass by pass, of one call of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, **inputs: object) -> list[tuple[Tensor, Tensor]]:
        seen: list[tuple[Tensor, Tensor]] = []
        hook = self.model.lm_head.register_forward_hook(lambda _, args, out: seen.append((args[0][0], out[0])))
        with torch.no_grad():
            self.model(**inputs)
        hook.remove()
        return seen


class SpeculatorsEagle3:
    """Drafts by the training-time test of speculators: pass k at the row of the anchor, fed with the drafts before it."""

    def __init__(self, model: Eagle3DraftModel, target: PreTrainedModel) -> None:
        self.watched, self.d2t = Watched(model), model.d2t
        self.states = states_of(target, TAPS)

    def draft(self, text: Sequence[int], budget: int) -> tuple[list[int], Tensor]:
        row, tokens, logits = len(text) - 2, [], []
        features = torch.cat((self.states(text[:-1]), torch.zeros(budget, len(TAPS) * H)))
        for step in range(budget):
            ids = torch.tensor([[*text[1:], *tokens, *[0] * (budget - step)]])
            passes = self.watched(
                hidden_states=features[None], input_ids=ids, document_ids=torch.zeros_like(ids), ttt_steps=step + 1
            )
            logits.append(passes[step][1][row])
            best = int(logits[-1].argmax())
            tokens.append(best + (0 if self.d2t is None else int(self.d2t[best])))
        return tokens, torch.stack(logits)


class SpeculatorsMtp:
    """Drafts by the first pass of speculators, again for every draft: the state that it made is the next row's feature.

    Its own later passes put every row of a text one state further, as training does; serving keeps the committed rows.
    """

    def __init__(self, model: MTPDraftModel, target: PreTrainedModel) -> None:
        self.watched, self.states = Watched(model), states_of(target, ["final"])

    def draft(self, text: Sequence[int], budget: int) -> tuple[list[int], Tensor]:
        features, tokens, logits = self.states(text[:-1]), [], []
        for _ in range(budget):
            ids = torch.tensor([[*text, *tokens, 0]])
            [(state, out)] = self.watched(input_ids=ids, hidden_states=features[None])
            logits.append(out[-1])
            tokens.append(int(out[-1].argmax()))
            features = torch.cat((features, state[-1:]))
        return tokens, torch.stack(logits)


def eagle3(target: PreTrainedModel, layer: str = "llama", draft_vocab: int = DRAFT_VOCAB, **flags: bool) -> Eagle3DraftModel:
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=EAGLE3_LAYERS[layer],
            draft_vocab_size=draft_vocab,
            eagle_aux_hidden_state_layer_ids=TAPS,
            speculators_config=proposing("eagle3", 4),
            **flags,
        )
    )
    randomise(model, target)
    counts = {token: 1 + token * 7 % 13 for token in range(VOCAB)}
    d2t, t2d = build_vocab_mappings_from_distribution(counts, draft_vocab, VOCAB)
    model.load_vocab_mappings(t2d, d2t)
    return model


def mtp(target: PreTrainedModel, layer: str = "qwen3") -> MTPDraftModel:
    model = MTPDraftModel(
        MTPSpeculatorConfig(transformer_layer_config=MTP_LAYERS[layer], speculators_config=proposing("mtp", 1))
    )
    randomise(model, target)
    model.lm_head.weight.copy_(target.lm_head.weight.detach())
    return model


def saved(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def llama(checkpoint: Callable[..., tuple[Path, PreTrainedModel]]) -> tuple[Path, PreTrainedModel]:
    return checkpoint("llama")


@pytest.mark.parametrize("layer", EAGLE3_LAYERS)
@pytest.mark.parametrize("draft_vocab", [DRAFT_VOCAB, VOCAB])
def test_eagle_3_that_speculators_saved_drafts_what_speculators_computes(llama, tmp_path, layer, draft_vocab):
    model, target = eagle3(llama[1], layer, draft_vocab), target_of(llama[0])
    drafter = Eagle3Drafter(target, test_eagle3.OPTIONS, saved(model, tmp_path / "saved"))
    assert_cycles_match(target, drafter, SpeculatorsEagle3(model, llama[1]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_eagle_3_are_those_of_speculators(llama, tmp_path, variant):
    model, target = eagle3(llama[1], **{variant: True}), target_of(llama[0])
    drafter = Eagle3Drafter(target, test_eagle3.OPTIONS, saved(model, tmp_path / "saved"))
    assert_cycles_match(target, drafter, SpeculatorsEagle3(model, llama[1]), cycles=2)
    with pytest.raises(AssertionError):
        assert_cycles_match(target_of(llama[0]), drafter, SpeculatorsEagle3(eagle3(llama[1]), llama[1]), cycles=1)


@pytest.mark.parametrize("layer", MTP_LAYERS)
def test_an_mtp_module_that_speculators_saved_drafts_what_speculators_computes(llama, tmp_path, layer):
    model, target = mtp(llama[1], layer), target_of(llama[0])
    drafter = MtpDrafter(target, test_mtp.OPTIONS, saved(model, tmp_path / "saved"))
    assert_cycles_match(target, drafter, SpeculatorsMtp(model, llama[1]))


def test_the_comparison_notices_a_shift_by_one_position(llama, tmp_path):
    made = {
        "eagle3": (eagle3(llama[1]), Eagle3Drafter, test_eagle3.OPTIONS, SpeculatorsEagle3),
        "mtp": (mtp(llama[1]), MtpDrafter, test_mtp.OPTIONS, SpeculatorsMtp),
    }
    for name, (model, drafter, options, oracle) in made.items():
        ours = drafter(target_of(llama[0]), options, saved(model, tmp_path / name))
        features = oracle(model, llama[1])
        right = features.states
        features.states = lambda text, right=right: right(text).roll(1, 0)
        with pytest.raises(AssertionError):
            assert_cycles_match(target_of(llama[0]), ours, features, cycles=1)


def test_what_speculators_converts_from_a_published_eagle_3_drafts_the_same(llama, tmp_path):
    folder = test_eagle3.write(tmp_path / "published")
    Eagle3Converter().convert(
        folder, tmp_path / "converted", str(llama[0]), validate=False, eagle_aux_hidden_state_layer_ids=TAPS
    )
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["speculators_model_type"] == "eagle3"
    truth = test_eagle3.drafts_of(target_of(llama[0]), folder)
    assert test_eagle3.drafts_of(target_of(llama[0]), str(tmp_path / "converted")) == truth


def test_what_speculators_converts_from_a_qwen_checkpoint_drafts_the_same(llama, tmp_path):
    folder = test_mtp.write(tmp_path / "published", "qwen")
    MTPConverter().convert(folder, tmp_path / "converted", str(llama[0]), validate=False)
    assert test_mtp.drafts_of(llama, str(tmp_path / "converted")) == test_mtp.drafts_of(llama, folder)
