"""At a temperature, drafts of every learned drafter, point masses or drawn, leave the target's distribution as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from drafters.dense import DenseTarget
from drafters.dflash import DFlashDrafter
from drafters.eagle3 import Eagle3Drafter
from drafters.mtp import MtpDrafter
from drafters.sampling import SamplingParams
from drafters.verify import verify
from tests.drafters import test_dspark as dspark
from tests.drafters import test_eagle3 as eagle3
from tests.drafters import test_mtp as mtp
from tests.drafters import test_xpress as xpress
from tests.drafters.dflash_cases import config_of, tensors_of, write
from tests.drafters.loop_cases import VOCAB, draws, exact_pairs
from tests.drafters.serial_cases import target_of

TEXT, COUNT = [2, 3, 4, 2, 3, 5, 2, 3], 200
# A p-value below this fails a correct drafter once in 10,000 seeds. Seeds are fixed, so a test that passed once passes always.
FALSE_ALARM = 1e-4


def eagle3_of(target: DenseTarget, folder: Path) -> Eagle3Drafter:
    config = {**eagle3.CONFIG, "vocab_size": VOCAB, "draft_vocab_size": VOCAB}
    tensors = {name: t for name, t in eagle3.tensors_of(config).items() if name not in ("d2t", "t2d")}
    return Eagle3Drafter(target, eagle3.OPTIONS, eagle3.write(folder, config, tensors))


def dflash_of(target: DenseTarget, folder: Path) -> DFlashDrafter:
    config = config_of(1, vocab=VOCAB)
    return DFlashDrafter(target, {}, write(folder, config, tensors_of(config)))


MADE: dict[str, Callable[[DenseTarget, Path], Any]] = {
    "eagle3": eagle3_of,
    "mtp": lambda target, folder: MtpDrafter(target, mtp.OPTIONS, mtp.write(folder, vocab_size=VOCAB)),
    "dflash": dflash_of,
    "dspark": lambda target, folder: dspark.made(folder, target, vocab=VOCAB, sample=True, temperature=0.7),
    "xpress": lambda target, folder: xpress.made(folder, 2, 0, target, vocab=VOCAB),
}
CASES = [("eagle3", "standard"), ("eagle3", "block"), ("mtp", "standard"), ("mtp", "block")]
CASES += [("dflash", "standard"), ("dspark", "block"), ("xpress", "standard")]


@pytest.fixture(scope="module")
def exact(checkpoint: Callable[..., Any]) -> np.ndarray:
    """Probabilities of the second and third token behind `TEXT`, [V, V]."""
    model, params = checkpoint("llama_tied", VOCAB)[1], SamplingParams(0.9, 1.0, 0, 0)
    first = exact_pairs(model, TEXT, params).sum(1)
    return sum(first[t] * exact_pairs(model, [*TEXT, t], params) for t in range(VOCAB))


def p_value(exact: np.ndarray, seen: np.ndarray) -> float:
    """Chi-square of pairs of tokens; cells that expect under five are pooled."""
    expected = exact * seen.sum()
    keep = expected >= 5
    cells = [np.append(counts[keep], counts[~keep].sum()) for counts in (seen, expected)]
    return float(chisquare(*cells).pvalue)


@pytest.mark.parametrize(("arm", "rule"), CASES)
def test_sampled_tokens_through_the_loop_follow_the_targets_own_distribution(checkpoint, exact, tmp_path, arm, rule):
    target = target_of(checkpoint("llama_tied", VOCAB)[0], slots=64)
    assert p_value(exact, draws(target, MADE[arm](target, tmp_path / arm), rule, TEXT, COUNT)) > FALSE_ALARM


@pytest.mark.parametrize("arm", ["dflash", "dspark", "xpress"])
def test_a_loop_that_accepts_every_draft_is_seen(checkpoint, exact, tmp_path, monkeypatch, arm):
    """Power: the same test, with half the draws, on a wrong rule."""

    def lenient(logits: Any, draft: Any, *more: Any) -> Any:
        verdict = verify(logits, draft, *more)
        return verdict if draft is None else replace(verdict, accepted=list(draft.lengths))

    monkeypatch.setattr("drafters.loop.verify", lenient)
    target = target_of(checkpoint("llama_tied", VOCAB)[0], slots=64)
    assert p_value(exact, draws(target, MADE[arm](target, tmp_path / arm), "standard", TEXT, COUNT // 2)) < 1e-6
