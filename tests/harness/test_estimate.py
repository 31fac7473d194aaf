"""The time of a run: from parts that an earlier run took, as a range where the run is not like it."""

from dataclasses import replace

import pandas as pd
import pytest

from harness.compose import compose_run
from harness.config import Run
from harness.estimate import UNLIKE, estimate_seconds, rate
from harness.pace import Pace, pace_of
from harness.store import Tables
from tests.harness.rigs_cases import TWO_ARMS

SECOND = 10**9
METHODS = frozenset({"plain", "ngram"})
PACE = Pace("earlier", METHODS, 0.01, {(False, 1): 0.1, (True, 1): 0.05}, 100.0, 20.0, 20.0, 5.0, 2.0, 0.5, 0.25, 2.0)


def stored_tables() -> Tables:
    """A plain serving and an ngram one: 2 s to the first request, two warm-up batches, cells at one request and at eight."""
    rows, steps = [], []
    for serving, begun in (("p", 0), ("n", 100)):
        for cell, level, sent, ended, count in (("a", 1, 10, 20, 2), ("b", 8, 20, 40, 8)):
            rows += [
                (f"{serving}{cell}", serving, level, "measured", f"{serving}{cell}-m-{i}", begun + sent, begun + ended)
                for i in range(count)
            ]
            steps.append((f"{serving}{cell}", serving, "prefill", "measured", count * SECOND))
        rows += [
            (f"{serving}a", serving, 1, "warmup", f"{serving}a-w{batch}-0", begun + 3 + batch, begun + 4 + batch)
            for batch in range(2)
        ]
    names = ["cell_id", "serving_id", "concurrency", "phase", "request_id", "sent_ns", "ended_ns"]
    requests = pd.DataFrame(rows, columns=names).assign(max_tokens=10, output_tokens=10, prompt_tokens=50, error=None)
    requests["chunk_ns"] = [[sent * SECOND + SECOND] for sent in requests["sent_ns"]]
    requests[["sent_ns", "ended_ns"]] *= SECOND
    servings = pd.DataFrame(
        {
            "serving_id": ["p", "n", "never-measured"],
            "method": ["plain", "ngram", "mtp"],
            "launched_ns": [1 * SECOND, 101 * SECOND, 0],
            "ended_ns": [61 * SECOND, 143 * SECOND, None],
        }
    )
    widths = pd.DataFrame({"serving_id": ["p"] * 4, "round": [0, 0, 1, 1], "verify_ns": [SECOND] * 4})
    prefills = pd.DataFrame(steps, columns=["cell_id", "serving_id", "kind", "phase", "total_ns"])
    return Tables(servings, requests, prefills, pd.DataFrame(), widths=widths)


def test_the_pace_tells_launch_prompts_decoding_and_looks_behind_the_cells_apart() -> None:
    pace = pace_of("earlier", stored_tables())
    assert pace is not None
    assert pace.boot_seconds == 2.0
    assert pace.prompt_seconds == pytest.approx(20 / (20 * 50))  # 20 s of prefill steps, 20 prompts of 50 tokens
    assert pace.token_seconds == pytest.approx(
        {(drafts, 1): 8 / 20 for drafts in (False, True)} | {(d, 8): 12 / 80 for d in (0, 1)}
    )
    assert (pace.prompt_tokens, pace.answer_tokens, pace.limit_tokens, pace.warmup_batches) == (50, 10, 10, 2)
    # behind its cells ngram took 3 s and plain 21: 4 of them timed rounds, two for nine requests, and 14 around them
    assert (pace.after_seconds, pace.width_seconds, pace.round_seconds) == pytest.approx((3, 14 / 9, 2 / 9))


def test_without_steps_prompts_are_what_the_lowest_level_waited() -> None:
    tables = stored_tables()
    pace = pace_of("earlier", Tables(tables.servings, tables.requests, pd.DataFrame(), pd.DataFrame()))
    assert pace is not None
    assert pace.prompt_seconds == pytest.approx(1 / 50)


def test_a_run_without_a_measured_request_has_no_pace() -> None:
    tables = stored_tables()
    assert pace_of("none", replace(tables, requests=tables.requests.assign(phase="warmup"))) is None


def _run(*overrides: str) -> Run:
    small = ["protocol.blocks=2", "protocol.prompts_per_set=3", "workload=smoke", "protocol.max_tokens_cap=20"]
    bare = ["protocol.warmup_batches=2", "protocol.warmup_prompts=2", "protocol.width_rounds=3", "concurrency=[1]"]
    return compose_run("cpu_smollm2", [*TWO_ARMS, *small, *bare, *overrides]).run


def test_a_run_like_the_earlier_one_takes_launches_warm_up_cells_and_looks() -> None:
    one = {"plain": 100 * 0.01 + 20 * 0.1, "ngram": 100 * 0.01 + 20 * 0.05}
    asked = 3 * 3 + 2 * 2  # three sets of three prompts, two warm-up batches of two
    each = {arm: 5 + 2 + asked * seconds for arm, seconds in one.items()}
    expected = 2 * (each["plain"] + each["ngram"] + 0.5 + 3 * 0.25)
    assert estimate_seconds(_run(), PACE) == pytest.approx((expected, expected))


def test_prompts_count_as_much_as_they_are_long() -> None:
    low = estimate_seconds(_run(), PACE)[0]
    assert estimate_seconds(_run(), replace(PACE, prompt_tokens=200.0))[0] == pytest.approx(low + 4 * 13 * 100 * 0.01)


@pytest.mark.parametrize(
    "override", ["concurrency=[1,32]", "protocol.max_tokens_cap=40", "protocol.warmup_batches=4", "arms.ngram.method=suffix"]
)
def test_what_the_earlier_run_did_not_do_makes_a_range(override: str) -> None:
    run = _run(override) if not override.startswith("arms") else _run()
    pace = replace(PACE, methods=frozenset({"plain"})) if override.startswith("arms") else PACE
    low, high = estimate_seconds(run, pace)
    assert 1.05 * low < high


def test_a_level_that_was_not_measured_lies_between_what_a_batch_can_cost() -> None:
    pace = replace(PACE, token_seconds={(False, 1): 0.1, (False, 32): 0.01})
    assert rate(pace, False, 1) == (0.1, 0.1)
    assert rate(pace, False, 8) == pytest.approx((0.1 / 8, 0.01 * 32 / 8))
    assert rate(pace, False, 64) == pytest.approx((0.005, 0.01))
    assert rate(pace, True, 32) == (0.01, 0.01), "no drafting arm was measured"
    assert UNLIKE > 1
