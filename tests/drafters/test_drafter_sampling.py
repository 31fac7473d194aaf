"""At a temperature, drafts of the serial drafters are judged as point masses and leave the target's distribution as it is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from drafters.contract import Drafter
from drafters.eagle3 import Eagle3Drafter
from drafters.mtp import MtpDrafter
from drafters.sampling import SamplingParams
from tests.drafters import test_eagle3 as eagle3
from tests.drafters import test_mtp as mtp
from tests.drafters.loop_cases import VOCAB, draws, exact_pairs
from tests.drafters.serial_cases import target_of


@pytest.mark.parametrize(("arm", "rule"), [("eagle3", "standard"), ("mtp", "block")])
def test_sampled_tokens_through_the_loop_follow_the_targets_own_distribution(checkpoint, tmp_path, arm, rule):
    folder, model = checkpoint("llama_tied", VOCAB)
    target = target_of(folder, slots=64)
    text, count = [2, 3, 4, 2, 3, 5, 2, 3], 400
    drafter: Drafter
    if arm == "eagle3":
        config = {**eagle3.CONFIG, "vocab_size": VOCAB, "draft_vocab_size": VOCAB}
        tensors = {name: t for name, t in eagle3.tensors_of(config).items() if name not in ("d2t", "t2d")}
        drafter = Eagle3Drafter(target, eagle3.OPTIONS, eagle3.write(tmp_path / arm, config, tensors))
    else:
        drafter = MtpDrafter(target, mtp.OPTIONS, mtp.write(tmp_path / arm, vocab_size=VOCAB))
    params = SamplingParams(0.9, 1.0, 0, 0)
    first = exact_pairs(model, text, params).sum(1)
    exact = sum(first[t] * exact_pairs(model, [*text, t], params) for t in range(VOCAB))
    seen = draws(target, drafter, rule, text, count)
    keep = exact * count >= 5
    observed = np.append(seen[keep], seen[~keep].sum())
    expected = np.append(exact[keep], exact[~keep].sum()) * count
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4
