"""The verdict on real runs, word for word: a recorded screen of two arms, and every run of results/sample.

A new sample run needs its golden text: `samerig verdict results/sample/RUN > tests/recorded/verdict/RUN_ID.txt`, to be read
before it is committed. `RUN_ID` is what its run.json says.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness import cli
from harness.report.run import read_run
from harness.rigs import ROOT
from harness.verdict import recommend
from harness.verdict_profile import load_profile

RECORDED = ROOT / "tests" / "recorded"
SCREEN = RECORDED / "runs" / "screen_plain_ngram"
RUNS = sorted({file.parent for file in (*(RECORDED / "runs").rglob("run.json"), *(ROOT / "results/sample").rglob("run.json"))})


def golden(run: Path) -> Path:
    return RECORDED / "verdict" / f"{json.loads((run / 'run.json').read_text('utf-8'))['run_id']}.txt"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_verdict_on_a_real_run_is_its_golden_text(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert golden(run).is_file(), f"write it: samerig verdict {run.relative_to(ROOT)} > {golden(run).relative_to(ROOT)}"
    assert cli.main(["verdict", str(run)]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        line.rstrip() for line in golden(run).read_text("utf-8").splitlines()
    ]


def test_the_recorded_run_is_among_them_and_every_golden_text_has_a_run() -> None:
    assert SCREEN in RUNS
    assert {path.name for path in (RECORDED / "verdict").iterdir()} == {golden(run).name for run in RUNS}


def test_the_weighted_speedup_is_that_of_the_raw_rows() -> None:
    """The coding profile by pandas alone: log ratios of request rates paired by block and prompt, plain's time as weight."""
    rows = pd.read_parquet(SCREEN / "requests.parquet")
    rows = rows[rows["phase"] == "measured"].assign(seconds=lambda r: (r["ended_ns"] - r["sent_ns"]) / 1e9)
    rows["tps"] = rows["output_tokens"] / rows["seconds"]
    shares = load_profile("coding").classes
    assert list(load_profile("coding").concurrency) == [1]
    plain_s = arm_s = 0.0
    for name, share in shares.items():
        of_class = rows[rows["content_class"] == name]
        rate = of_class.pivot_table(index=["block", "prompt_set", "prompt_id"], columns="arm", values="tps")
        plain = of_class[of_class["arm"] == "plain"]
        seconds = share / (plain["output_tokens"].sum() / plain["seconds"].sum())
        plain_s, arm_s = plain_s + seconds, arm_s + seconds / np.exp(np.log(rate["ngram"] / rate["plain"]).mean())
    found = recommend(read_run(SCREEN), load_profile("coding")).weighed[0]
    assert found.arm == "ngram"
    assert found.speedup == pytest.approx(plain_s / arm_s, rel=0.02)
