"""The measurement that the near-tie limits rest on: it finds what was moved, and arithmetic alone stays under the limit."""

from __future__ import annotations

import pytest
import torch

from drafters.dense import DenseTarget
from harness.gates.identity import NEAR_TIE
from perf.near_ties import CANDIDATES, WIDTHS, decoded, read_again, read_together, shifts

CPU = torch.device("cpu")
PROMPT = tuple(range(2, 26))
ANSWER = 24


@pytest.fixture
def target(checkpoint) -> DenseTarget:
    return DenseTarget(checkpoint("llama")[0], torch.float32, CPU, slots=2, max_length=128)


def test_a_shift_is_what_changes_between_the_best_tokens_and_not_what_changes_in_all():
    one_NV = torch.arange(40.0).flip(0).repeat(3, 1)
    moved_NV = one_NV + torch.tensor([[0.0], [5.0], [-2.0]])
    moved_NV[0, 2] += 0.7
    moved_NV[1, CANDIDATES + 3] += 9.0  # no candidate
    moved_NV[2, 0] -= 0.2
    moved_NV[2, 1] += 0.3
    assert shifts(one_NV, moved_NV).tolist() == pytest.approx([0.7, 0.0, 0.5], abs=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
def test_in_float32_the_width_of_a_pass_moves_less_than_the_limit(target: DenseTarget, width: int):
    answer, logits_NV = decoded(target, PROMPT, ANSWER)
    again_NV = read_again(target, PROMPT, answer, width)
    assert again_NV.shape == logits_NV.shape
    assert float(shifts(logits_NV, again_NV).max()) < NEAR_TIE["float32"]
    assert (logits_NV.argmax(1)[:-1] == torch.tensor(answer[1:])).all(), "the text is what one row a pass chooses"


def test_texts_in_one_batch_are_read_as_each_alone(target: DenseTarget):
    texts = [(prompt, decoded(target, prompt, ANSWER)[0]) for prompt in (PROMPT, PROMPT[5:])]
    together = read_together(target, texts, 3)
    for row_NV, (prompt, answer) in zip(together, texts, strict=True):
        assert float(shifts(read_again(target, prompt, answer, 3), row_NV).max()) < NEAR_TIE["float32"]


def test_another_text_is_no_near_tie(target: DenseTarget):
    """What a fault does: one token of the context is another."""
    answer, logits_NV = decoded(target, PROMPT, ANSWER)
    wrong_NV = read_again(target, (PROMPT[0] + 1, *PROMPT[1:]), answer, 5)
    assert float(shifts(logits_NV, wrong_NV).median()) > NEAR_TIE["float32"]
