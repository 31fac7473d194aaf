"""A drafter built without weights: what needs values is left to the serving, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drafters.outline import META, TargetOutline, drafter_outline

TARGET = TargetOutline((8, 2, 16), torch.float32, slots=1, max_length=32)


@pytest.mark.parametrize(
    "reads", [lambda values: values.sum().item(), lambda values: values.to("cpu"), lambda values: bool(values[0] > 0)]
)
def test_a_drafter_that_reads_its_weights_while_it_is_built_is_left_to_the_serving(reads) -> None:
    def drafter(*_: object) -> Tensor:
        return reads(torch.empty(3, device=META))

    assert drafter_outline(drafter, TARGET, {}, None) is None


@pytest.mark.parametrize("wrong", [lambda: torch.empty(2, 3, device=META) @ torch.empty(2, 3, device=META), None])
def test_sizes_that_do_not_go_together_and_a_word_like_metadata_are_refusals(wrong) -> None:
    def drafter(*_: object) -> Tensor:
        if wrong is None:
            raise RuntimeError("the metadata of the file is cut off")
        return wrong()

    with pytest.raises(ValueError, match=r"same reduction dim|metadata"):
        drafter_outline(drafter, TARGET, {}, None)
