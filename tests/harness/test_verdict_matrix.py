"""Decision matrices: printed totals are checked against their own scores, measured scores come from the run."""

import re

import pytest
from synthetic import simulate, write_run

from harness import cli
from harness.report.run import FinishedRun, read_run
from harness.verdict_matrix import Matrix, check_lines, leader, load_matrix, totals
from harness.verdict_scores import MEASURES, decision_matrix


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return read_run(write_run(tmp_path_factory.mktemp("results") / "sample", simulate()))


def test_the_published_matrix_does_not_follow_from_its_own_scores() -> None:
    matrix = load_matrix("published_seven")
    assert len(matrix.criteria) == 7
    assert sum(matrix.weights.values()) == pytest.approx(1)
    before, after = totals(matrix), totals(matrix, matrix.flips[0])
    assert [total.printed for total in before] == ["3.80", "3.70", "3.45"]
    assert [total.recomputed for total in before] == pytest.approx([4.05, 3.70, 3.60])
    assert [total.mistake is not None for total in before] == [True, False, True]
    assert (after[0].printed, after[0].recomputed) == ("2.90", pytest.approx(3.45))
    assert after[0].mistake is not None
    assert (leader(before), leader(after)) == ("first", "eagle3")
    lines = list(check_lines(matrix))
    assert lines.count("  ranking: first > eagle3 > third, the same as printed") == 1
    assert lines[-1] == "  ranking: eagle3 > third > first, the same as printed"


def test_a_reconstruction_says_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verdict", "--matrix", "published_seven"]) == 0
    out = capsys.readouterr().out
    assert "reconstruction that gives the known totals, not the published ones" in out
    assert re.search(r"first\s+printed\s+3\.80\s+recomputed 4\.05\s+does not follow", out)
    assert re.search(r"first\s+printed\s+2\.90\s+recomputed 3\.45", out)


def test_a_ranking_that_changes_is_told() -> None:
    matrix = Matrix.model_validate(
        {
            "name": "m",
            "summary": "s",
            "criteria": [{"name": "c", "weight": 1, "scores": {"a": 3, "b": 4}}],
            "printed": {"a": "5.0", "b": "4.0"},
        }
    )
    assert list(check_lines(matrix))[-1] == "  ranking: b > a; printed a > b"


def test_measured_scores_come_from_the_run_and_stated_ones_from_the_matrix(run: FinishedRun) -> None:
    matrix = load_matrix("default")
    plain, ngram = decision_matrix(run, matrix)
    assert (plain.arm, ngram.arm) == ("plain", "ngram")
    speed = next(c for c in matrix.criteria if c.measure == "speedup_lowest")
    assert plain.scores[speed.name] == 1.0
    assert 1 < (ngram.scores[speed.name] or 0) <= 5
    assert ngram.scores["nothing to train or fetch"] == 5
    assert ngram.counted == plain.counted == tuple(matrix.weights)
    known = {name: score for name, score in ngram.scores.items() if score is not None}
    by_hand = sum(matrix.weights[name] * score for name, score in known.items()) / sum(matrix.weights.values())
    assert ngram.total == pytest.approx(by_hand)


def test_a_criterion_that_one_arm_has_no_score_for_is_in_no_total(run: FinishedRun) -> None:
    matrix = Matrix.model_validate(
        {
            "name": "m",
            "summary": "s",
            "criteria": [
                {"name": "speed", "weight": 1, "measure": "speedup_lowest", "worst": 1, "best": 3},
                {"name": "trust", "weight": 9, "scores": {"plain": 5}},
            ],
        }
    )
    plain, ngram = decision_matrix(run, matrix)
    assert ngram.scores["trust"] is None
    assert plain.counted == ("speed",)
    assert plain.total == 1.0


def test_scores_are_cut_off_at_the_ends_of_their_line() -> None:
    criterion = load_matrix("default").criteria[0]
    assert [criterion.score(x) for x in (0.1, 1.0, 2.0, 3.0, 9.0)] == [1, 1, 3, 5, 5]


def test_an_unknown_measure_names_the_known_ones(run: FinishedRun) -> None:
    matrix = Matrix.model_validate(
        {"name": "m", "summary": "s", "criteria": [{"name": "c", "weight": 1, "measure": "speedup_low", "worst": 0, "best": 1}]}
    )
    with pytest.raises(ValueError, match="did you mean 'speedup_lowest'"):
        decision_matrix(run, matrix)
    assert all(rule.__doc__ for rule in MEASURES.values())
