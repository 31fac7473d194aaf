"""The command line: help, errors, exit codes, sweeps through Hydra, and a Makefile that parses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import cli, plan
from harness.compose import ComposedRun, ConfigError
from harness.engines.base import EngineError
from harness.replay_names import run_or_rig
from harness.rigs import ROOT, list_published, list_rigs
from harness.run_file import places
from harness.sweep import quiet

(SAMPLE,) = (ROOT / "results" / "sample").glob("cpu_smollm2-*")


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ComposedRun]:
    """Replaces measuring and reporting; returns what was asked to be measured, in order."""
    asked: list[ComposedRun] = []

    def bench(composed: ComposedRun, results: Path, fresh: bool, console: Console) -> Path:
        asked.append(composed)
        if composed.run.draft_budget == 13:
            raise EngineError("arm ngram: died\nlast line of its log")
        return results / f"run-{len(asked)}"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.run.bench", bench)
    for module in ("harness.report.command", "harness.report"):  # the first has taken its own name of it when it is imported
        monkeypatch.setattr(f"{module}.print_report", lambda folder, console, *_: console.print(f"table of {folder.name}"))
    monkeypatch.setattr("harness.report.command.print_comparison", _compared)
    monkeypatch.setattr("harness.report.html.write_html", lambda folder: folder / "report.html")
    monkeypatch.setattr(plan, "_arm_plans", lambda run: {})
    monkeypatch.setattr(plan, "missing_parts", lambda run: ())
    return asked


def _compared(one: Path, other: Path, console: Console) -> int:
    console.print(f"{one.name} beside {other.name}")
    return 0


@pytest.mark.parametrize("command", [[], ["bench"], ["plan"], ["doctor"], ["rigs"], ["report"]])
def test_every_command_has_help_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "examples:" in out
    assert "  samerig " in out.split("examples:")[1]


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom harness import cli\ntry:\n    cli.main(['bench', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'transformers', 'hydra', 'pandas', 'pyarrow', 'pydantic'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "harness", "rigs"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "cpu_smollm2" in done.stdout


def test_rigs_are_listed_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rigs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"cpu_smollm2", "h200_qwen27b", "smoke", "published/h200_qwen27b_card"} <= set(names)
    assert names == [name for name, _ in (*list_rigs(), *list_published())]
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["bench", "cpu_smolm2"], "error: rig 'cpu_smolm2': not in rigs/; did you mean 'cpu_smollm2'"),
        (["plan", "cpu_smollm2", "draft_budget=-1"], "error: draft_budget: "),
        (["bench", "cpu_smollm2", "draft_budget=1,3"], "error: draft_budget: 'draft_budget=1,3' is a sweep; add -m"),
        (["bench", "cpu_smollm2", "-m", "draft_budget=1,-3"], "error: job draft_budget=-3: draft_budget: "),
        (["report", "nothing"], "error: run 'nothing': no such folder"),
        (["report"], "error: no run in results/ yet"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(
    argv: list[str], told: str, benched: list[ComposedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(told)
    assert err.count("\n") == 1
    assert benched == []


def test_an_unknown_option_is_refused_with_the_way_to_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "cpu_smollm2", "--frsh"])
    assert stopped.value.code == 2
    assert "--frsh; see samerig bench --help" in capsys.readouterr().err


def test_a_traceback_is_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cli.TRACEBACK, "1")
    with pytest.raises(ValueError, match="not in rigs/"):
        cli.main(["plan", "nowhere"])


def test_bench_measures_prints_the_table_and_says_where_the_files_are(
    benched: list[ComposedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "cpu_smollm2", "draft_budget=3", "--fresh", "protocol=smoke", "--results", "here"]) == 0
    assert [(one.run.draft_budget, one.run.protocol.name) for one in benched] == [(3, "smoke")]
    assert capsys.readouterr().out == "table of run-1\nfiles: here/run-1, page: here/run-1/report.html\n"


def test_an_interrupted_bench_says_that_it_resumes(
    benched: list[ComposedRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*args: Any, **kwargs: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.run.bench", stop)
    assert cli.main(["bench", "cpu_smollm2"]) == 130
    assert "the same command resumes" in capsys.readouterr().err


def test_what_this_machine_lacks_stops_bench_before_it_launches(
    benched: list[ComposedRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "missing_parts", lambda run: ("engine adapter: gone",) if run.draft_budget == 7 else ())
    assert cli.main(["bench", "cpu_smollm2", "-m", "draft_budget=1,7"]) == 2
    assert capsys.readouterr().err == "error: job draft_budget=7: missing: engine adapter: gone\n"
    assert benched == []


def test_plan_exits_with_1_when_something_is_missing(
    benched: list[ComposedRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "cpu_smollm2"]) == 0
    monkeypatch.setattr(plan, "missing_parts", lambda run: ("engine adapter: gone",))
    assert cli.main(["plan", "cpu_smollm2"]) == 1
    assert "missing: engine adapter: gone" in capsys.readouterr().out
    assert benched == []


def test_a_sweep_of_one_job_runs_without_a_sweep_folder(benched: list[ComposedRun], tmp_path: Path) -> None:
    assert cli.main(["bench", "cpu_smollm2", "-m", "concurrency=1,8"]) == 0
    assert [one.run.concurrency for one in benched] == [(1, 8)]
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_goes_through_hydra_and_ends_with_all_jobs(
    benched: list[ComposedRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "cpu_smollm2", "-m", "draft_budget=1,3", "concurrency=1,8", "protocol=smoke"]
    before = list(sys.argv)
    assert cli.main(argv) == 0
    assert sys.argv == before
    assert [(one.run.draft_budget, one.run.concurrency, one.run.protocol.name) for one in benched] == [
        (1, (1, 8), "smoke"),
        (3, (1, 8), "smoke"),
    ]
    out = capsys.readouterr().out
    assert out.index("table of run-1") < out.index("table of run-2") < out.index("sweep: 2 jobs")
    assert f"draft_budget=3 concurrency=[1,8] protocol=smoke  {tmp_path}/results/run-2" in out
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert [path.name for path in (tmp_path / "results").iterdir()] == [".sweeps"]


def test_a_sweep_of_a_rig_file_from_anywhere_goes_through_hydra(benched: list[ComposedRun], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [smoke, _self_]\nname: mine\n")
    assert cli.main(["bench", "./mine.yaml", "-m", "draft_budget=1,3"]) == 0
    assert [(one.run.name, one.run.draft_budget) for one in benched] == [("mine", 1), ("mine", 3)]


def test_a_failed_job_is_told_and_the_others_still_run(benched: list[ComposedRun], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "cpu_smollm2", "-m", "draft_budget=13,2"]) == 1
    assert [one.run.draft_budget for one in benched] == [13, 2]
    captured = capsys.readouterr()
    assert "error: job draft_budget=13: arm ngram: died last line of its log" in captured.err
    assert "draft_budget=13  failed: arm ngram: died" in captured.out


def test_what_the_command_line_says_of_hydra_is_not_overruled() -> None:
    words = quiet(Path("/somewhere"), ["hydra.sweep.dir=elsewhere", "hydra/job_logging=default"])
    assert not [word for word in words if word.startswith(("hydra.sweep.dir", "hydra/job_logging"))]
    assert "hydra.job.chdir=false" in words


def test_report_takes_a_name_a_path_or_the_newest_run(
    benched: list[ComposedRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "run.json").write_text("{}")
    os.utime(tmp_path / "results" / "old" / "run.json", (2**31, 2**31))
    assert cli.main(["report", "new"]) == 0
    assert cli.main(["report"]) == 0
    assert cli.main(["report", "new", "results/old"]) == 0
    assert cli.main(["report", "new", "new", "old"]) == 0
    tables = ["table of new", "table of old", "new beside old", "table of new", "table of new", "table of old"]
    assert capsys.readouterr().out.splitlines() == tables
    assert cli.main(["report", "nwe"]) == 2
    assert "did you mean 'new'?" in capsys.readouterr().err


def test_a_run_of_the_samples_is_found_by_its_name_after_ones_own_and_named_where_there_is_no_other(
    benched: list[ComposedRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results" / "sample" / "theirs").mkdir(parents=True)
    (tmp_path / "results" / "sample" / "theirs" / "run.json").write_text("{}")
    found = [path for path in places("theirs", Path("results")) if path.is_dir()]
    assert found == [run_or_rig("theirs", Path("results"))] == [Path("results/sample/theirs")]
    assert cli.main(["report", "theirs"]) == 0
    assert capsys.readouterr().out == "table of theirs\n"
    assert cli.main(["report"]) == 2
    assert "shown with: samerig report results/sample/theirs" in capsys.readouterr().err
    assert cli.main(["report", "thiers"]) == 2
    assert "did you mean 'theirs'?" in capsys.readouterr().err
    assert "'theirs'" in _refused("thiers")
    (tmp_path / "results" / "theirs").mkdir()
    assert next(path for path in places("theirs", Path("results")) if path.is_dir()) == Path("results/theirs")


def _refused(what: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run_or_rig(what, Path("results"))
    return str(caught.value)


def _make(*words: str) -> str:
    return subprocess.run(["make", *words], capture_output=True, text=True, cwd=ROOT, check=True).stdout


TARGETS = ["bench", "sweep", "plan", "report", "test", "lint", "perf", "gpu-check", "notebooks", "clean", "env"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_parses_and_is_in_the_help(target: str) -> None:
    assert _make("-n", target)
    assert f"make {target} " in _make("help")


def test_make_variables_become_overrides() -> None:
    bench = _make("-n", "bench", "RIG=smoke", "PROTOCOL=screen", "ARGS=draft_budget=2 --fresh")
    assert "samerig bench smoke protocol=screen  draft_budget=2 --fresh" in bench
    sweep = _make("-n", "sweep", "RIG=h200_qwen27b", "CONCURRENCY=1,8,32")
    assert "samerig bench h200_qwen27b -m  'concurrency=[1,8,32]'" in sweep
    assert "samerig bench cpu_smollm2" in _make("-n", "bench")


def test_make_clean_never_names_results() -> None:
    removed = [line for line in _make("-n", "clean").splitlines() if line.startswith("rm ")]
    assert removed
    assert not any("results" in line for line in removed)


def test_the_scripts_are_valid_bash() -> None:
    for script in (".ci/run", "scripts/environment.sh"):
        subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
        assert (ROOT / script).stat().st_mode & 0o111


@pytest.mark.parametrize("words", [["rigs"], ["report", "--csv", str(SAMPLE)]])
def test_output_that_nobody_reads_any_more_ends_in_silence(words: list[str]) -> None:
    """`samerig report | head` is no error to tell."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "harness", *words], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.stderr, done.returncode != 0) == ("", True)
