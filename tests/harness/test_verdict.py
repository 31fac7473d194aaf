"""Verdicts: a recommendation follows from measured cells by its rule."""

import io
import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from synthetic import simulate, write_run

from harness import cli
from harness.report.run import FinishedRun, read_run
from harness.verdict import Recommendation, recommend
from harness.verdict_matrix import PROFILES
from harness.verdict_profile import Profile, load_profile, parts, profile_names, weigh
from harness.verdict_show import print_recommendation


def profile(**given: object) -> Profile:
    base = {"name": "p", "summary": "for a test", "concurrency": {1: 1.0}, "classes": {"code": 0.5, "chat": 0.5}}
    return Profile.model_validate({**base, **given})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("results") / "sample", simulate())


@pytest.fixture(scope="module")
def run(folder: Path) -> FinishedRun:
    return read_run(folder)


def changed(tmp_path: Path, change: object, blocks: int = 3) -> FinishedRun:
    """The synthetic run with its rows changed by a function."""
    rows = deepcopy(simulate(blocks))
    change(rows)
    return read_run(write_run(tmp_path / "changed", rows))


def test_the_verdict_on_the_synthetic_run_is_the_arm_that_was_made_faster(run: FinishedRun) -> None:
    found = recommend(run, profile())
    assert (found.primary, found.fallback, found.baseline, found.sure) == ("ngram", "plain", "plain", "screen")
    one = found.weighed[0]
    assert one.low is not None
    assert one.high is not None
    assert one.speedup is not None
    assert 1 < one.low < one.speedup < one.high
    assert one.covered == pytest.approx(1)
    assert found.reasons == ()


def test_an_arm_that_is_slower_leaves_plain(tmp_path: Path) -> None:
    def slow(rows: dict) -> None:
        for row in rows["requests"]:
            if row["arm"] == "ngram":
                row["ended_ns"] = row["sent_ns"] + 4 * (row["ended_ns"] - row["sent_ns"])
                row["chunk_ns"] = [row["sent_ns"] + 4 * (t - row["sent_ns"]) for t in row["chunk_ns"]]

    found = recommend(changed(tmp_path, slow), profile())
    assert (found.primary, found.fallback) == ("plain", "plain")
    assert any(reason.startswith("ngram: slower than plain in") for reason in found.reasons)
    assert "no arm's interval lies above 1 on this profile, so plain it is" in found.reasons


def test_a_confounded_arm_is_never_recommended(tmp_path: Path) -> None:
    def confound(rows: dict) -> None:
        for row in rows["servings"]:
            if row["arm"] == "ngram":
                row["resolved"]["dtype"] = '"bfloat16"'

    found = recommend(changed(tmp_path, confound), profile())
    assert found.primary == "plain"
    (one,) = found.weighed
    assert (one.speedup, one.low, one.covered) == (None, None, pytest.approx(1))
    lines = printed(found)
    assert [line for line in lines if "ngram" in line] == ["ngram: confounded by dtype"], "one line, and no number"
    assert lines[-1] == "no arm is known to be faster by more than 1 % and free of what is told above, so plain it is"


def test_a_speedup_is_of_the_comparable_cells_alone_and_what_confounds_the_rest_is_named(tmp_path: Path) -> None:
    def less(rows: dict) -> None:
        above_one(rows)
        for row in rows["requests"]:
            if row["arm"] == "ngram" and row["content_class"] == "chat" and row["concurrency"] == 1:
                row["prompt_hash"] = f"another {row['prompt_id']}"

    run = changed(tmp_path, less)
    found = recommend(run, profile())
    assert (found.primary, found.weighed[0].covered) == ("plain", pytest.approx(1))
    assert found.weighed[0].speedup == pytest.approx(weigh(run, profile(classes={"code": 1}))[0].speedup)
    (line,) = [line for line in printed(found) if line.startswith("ngram")]
    assert line.endswith(
        "over 50 % of the profile's tokens; confounded by prompt_hash of 6 prompts in the rest of what was measured"
    )
    assert recommend(run, profile(classes={"code": 1})).primary == "ngram"


def test_a_run_that_measured_nothing_yet_has_no_scores_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "begun", {**simulate(1), "requests": []})
    assert cli.main(["verdict", str(folder)]) == 0
    assert "decision matrix default" in capsys.readouterr().out


def test_an_arm_whose_requests_fail_is_never_recommended(tmp_path: Path) -> None:
    def fail(rows: dict) -> None:
        for row in rows["requests"]:
            if row["arm"] == "ngram" and row["prompt_id"] == "p5":
                row |= {"error": "died", "finish": None}

    found = recommend(changed(tmp_path, fail), profile())
    assert found.primary == "plain"
    assert any("of requests fail in" in reason for reason in found.reasons)


def test_one_block_recommends_nothing(tmp_path: Path) -> None:
    found = recommend(read_run(write_run(tmp_path / "one", simulate(1, ("plain", "ngram")))), profile())
    assert (found.primary, found.sure) == ("plain", "descriptive")
    assert found.weighed[0].low is None
    assert (found.weighed[0].speedup or 0) > 1
    assert "one block has no interval: nothing is recommended, the speedups are descriptive" in found.reasons


def test_five_blocks_can_carry_a_claim(tmp_path: Path) -> None:
    found = recommend(read_run(write_run(tmp_path / "five", simulate(5))), profile())
    assert (found.primary, found.sure) == ("ngram", "claim")


def test_traffic_that_was_not_measured_is_told_and_too_much_of_it_forbids(run: FinishedRun) -> None:
    some = recommend(run, profile(classes={"code": 0.9, "math": 0.1}))
    assert some.primary == "ngram"
    assert "ngram: 90 % of the profile's tokens were measured" in some.reasons
    most = recommend(run, profile(classes={"code": 0.5, "math": 0.5}))
    assert most.primary == "plain"
    assert any("80 % are needed" in reason for reason in most.reasons)
    assert recommend(run, profile(concurrency={64: 1})).sure == "unmeasured"


def test_speed_on_a_profile_is_plains_time_over_the_arms(run: FinishedRun) -> None:
    one = weigh(run, profile(concurrency={1: 0.25, 2: 0.75}, classes={"code": 1}))[0]
    plain = sum(m.part.share / m.plain_tps for m in one.measured)
    ours = sum(m.part.share / m.plain_tps / (m.speedup.value or 0) for m in one.measured)
    assert one.speedup == pytest.approx(plain / ours)
    assert [m.part.share for m in one.measured] == [0.25, 0.75]


def test_a_profile_with_one_cell_has_that_cells_speedup(run: FinishedRun) -> None:
    one = weigh(run, profile(classes={"code": 1}))[0]
    cell = one.measured[0].speedup
    assert (one.speedup, one.low, one.high) == pytest.approx((cell.value, cell.low, cell.high))


def test_depths_of_context_are_parts_of_their_own(tmp_path: Path) -> None:
    def deepen(rows: dict) -> None:
        for row in rows["requests"]:
            if row["content_class"] == "chat":
                row |= {"prompt_set": "long@512", "content_class": "long"}

    deep = changed(tmp_path, deepen)
    asked = profile(classes={"code": 1}, context={"short": 0.5, 512: 0.5})
    assert [(part.label, part.depth, part.share) for part in parts(asked)] == [("code", None, 0.5), ("long", 512, 0.5)]
    assert weigh(deep, asked)[0].covered == pytest.approx(1)
    assert weigh(deep, profile(classes={"code": 1}, context={"short": 0.5, 1500: 0.5}))[0].covered == pytest.approx(0.5)


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.sampled_from([1, 8, 32]), st.floats(0.01, 10), min_size=1),
    st.dictionaries(st.sampled_from(["code", "chat", "prose"]), st.floats(0.01, 10), min_size=1),
)
def test_shares_of_a_profile_add_up_to_one(levels: dict[int, float], classes: dict[str, float]) -> None:
    asked = profile(concurrency=levels, classes=classes, context={"short": 3, 512: 1})
    assert sum(part.share for part in parts(asked)) == pytest.approx(1)


@pytest.mark.parametrize("name", profile_names())
def test_a_shipped_profile_can_be_loaded_and_is_documented(name: str) -> None:
    found = load_profile(name)
    assert found.name == name
    assert (PROFILES / f"{name}.yaml").read_text("utf-8").startswith("# ")
    known = {"code", "math", "chat", "prose", "structured", "repetition"}
    assert set(found.classes) <= known


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurrency: {1: 0}", "concurrency"),
        ("classes: {code: -1, chat: 2}", "classes"),
        ("colour: blue", "colour"),
    ],
)
def test_a_mistake_in_a_profile_names_its_key(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    data = {"name": "mine", "summary": "s", "concurrency": {1: 1}, "classes": {"code": 1}} | yaml.safe_load(text)
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match=told):
        load_profile(str(path))


def test_an_unknown_profile_lists_near_matches() -> None:
    with pytest.raises(ValueError, match="did you mean 'coding'"):
        load_profile("codng")


def test_the_command_prints_profiles_and_matrix(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"name": "mine", "summary": "my traffic", "concurrency": {1: 1}, "classes": {"code": 1}}))
    assert cli.main(["verdict", str(folder), "--profile", str(mine), "service"]) == 0
    out = capsys.readouterr().out
    assert "mine  my traffic" in out
    assert "primary ngram · fallback plain · baseline plain · two to four blocks: a screen, not a claim" in out
    assert "service  " in out
    assert "decision matrix default" in out
    assert re.search(r"^total\s+\d\.\d\d\s+\d\.\d\d$", out, re.M)


def test_the_command_wants_a_run_or_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verdict"]) == 2
    assert "name a run, or a matrix" in capsys.readouterr().err


def above_one(rows: dict) -> None:
    """Every answer of ngram takes a quarter of its time, so that no interval reaches down to 1."""
    for row in rows["requests"]:
        if row["arm"] == "ngram":
            row["ended_ns"] = row["sent_ns"] + (row["ended_ns"] - row["sent_ns"]) // 4
            row["chunk_ns"] = [row["sent_ns"] + (t - row["sent_ns"]) // 4 for t in row["chunk_ns"]]


def printed(found: Recommendation) -> list[str]:
    out = io.StringIO()
    print_recommendation(found, Console(file=out, width=160))
    return [line.strip() for line in out.getvalue().splitlines()]


def test_nothing_is_claimed_of_a_profile_of_which_too_little_was_measured(tmp_path: Path) -> None:
    found = recommend(changed(tmp_path, above_one, blocks=5), profile(classes={"code": 0.5, "math": 0.5}))
    assert found.weighed[0].low is not None
    assert found.weighed[0].low > 1
    assert (found.sure, found.is_recommended) == ("uncovered", False)
    assert printed(found)[1] == "no arm is recommended, plain stays · too little was measured"
    assert printed(found)[-1] == "too little of this profile was measured: nothing is recommended"


def test_what_is_said_where_nothing_is_recommended_is_true_of_the_numbers(tmp_path: Path) -> None:
    """Five blocks and an A/A arm, but the fast arm fails: no primary, no claim, and not that no interval lies above 1."""

    def fast_and_failing(rows: dict) -> None:
        above_one(rows)
        for row in rows["requests"]:
            if row["arm"] == "ngram" and row["prompt_id"] == "p5":
                row |= {"error": "died", "finish": None}

    lines = printed(recommend(changed(tmp_path, fast_and_failing, blocks=5), profile()))
    assert lines[1] == "no arm is recommended, plain stays · five blocks or more and an A/A arm"
    assert not any("primary" in line or "can be claimed" in line or "no arm's interval" in line for line in lines)
    assert lines[-1] == "no arm is known to be faster by more than 1 % and free of what is told above, so plain it is"


def test_five_blocks_without_an_a_a_arm_are_no_claim(tmp_path: Path) -> None:
    found = recommend(read_run(write_run(tmp_path / "run", simulate(5, ("plain", "ngram")))), profile())
    assert (found.primary, found.sure) == ("ngram", "no_floor")
    assert printed(found)[1].endswith("five blocks or more, but no A/A arm: not a claim")
    assert "no A/A arm: the noise floor of this machine is not known" in found.reasons


def test_an_arm_that_was_not_measured_has_no_share(run: FinishedRun) -> None:
    lines = printed(recommend(run, profile(concurrency={64: 1})))
    assert lines[1:] == [
        "no arm is recommended, plain stays · not measured",
        "ngram: not measured",
        "the run has no cell of this profile: nothing is recommended",
    ]


def test_a_folder_of_runs_names_them_ready_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcdefg":
        write_run(tmp_path / name, simulate(1))
    for command in (["verdict", str(tmp_path)], ["replay", str(tmp_path / "a"), "--measured", str(tmp_path)]):
        assert cli.main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {tmp_path}: no run here; it holds 7; name one: ")
        named = line.partition("name one: ")[2].removesuffix(" (and 2 more)").split()
        assert len(named) == 5
        assert cli.main(["verdict", named[0]]) == 0
        capsys.readouterr()
