"""Reports of runs that are being measured, were cut off, or were resumed: nobody is accused of what is still to come."""

import json
import os

from printed_report import pick, printed
from synthetic import serving, simulate, write_run

from harness.folders import acquire
from harness.report import summary


def printed_while_measured(folder):
    (folder / "run.json").write_text(json.dumps({"run_id": "run"}))
    lock = acquire(folder)
    try:
        return " ".join(printed(folder).split())
    finally:
        os.close(lock)


def test_a_run_that_has_not_ended_says_so_and_accuses_no_arm_of_cells_still_to_come(tmp_path):
    """Block 2 of ngram has its code and not yet its chat: less was asked, which is a difference only once the run has ended."""
    rows = simulate(3)
    late = [r for r in rows["requests"] if not (r["block"] == 2 and r["arm"] == "ngram" and r["content_class"] == "chat")]
    folder = write_run(tmp_path / "run", {**rows, "requests": [r for r in late if r["block"] < 2 or r["arm"] != "plain2"]})
    text = printed_while_measured(folder)
    assert "being measured now, 30 of 36 cells so far" in text
    assert "resumes" not in text
    assert "control: ngram against plain CONTROLLED" in text
    assert "confounded" not in text.partition(" n: requests per arm")[0]
    cut_off = " ".join(printed(folder).split())
    assert "30 of 36 cells are measured; the same command resumes" in cut_off
    assert "control: ngram against plain CONTROLLED" in cut_off
    assert "confounded" not in cut_off.partition(" n: requests per arm")[0]
    (folder / "run.json").write_text(json.dumps({"run_id": "run", "finished_at": "2026-01-01T00:00:00Z"}))
    assert "confounded by prompts" in " ".join(printed(folder).split())


def test_an_arm_without_a_cell_beside_plain_yet_has_no_verdict(tmp_path):
    rows = simulate(1)
    begun = [r for r in rows["requests"] if (r["arm"], r["content_class"]) in (("plain", "code"), ("ngram", "chat"))]
    folder = write_run(tmp_path / "run", {**rows, "requests": begun})
    text = printed_while_measured(folder)
    assert "ngram: not measured beside plain at concurrency 1 yet" in text
    assert "refused: speedup" in text
    assert "no block was measured whole by every arm" in text


def test_a_run_without_rows_yet_says_so(tmp_path):
    rows = {"servings": [serving("plain")], "requests": [], "steps": [], "samples": []}
    assert "no measured requests yet" in printed(write_run(tmp_path / "run", rows))


def test_a_resumed_run_leaves_pairs_over_two_sessions_out_of_its_speedups_and_keeps_the_rest(tmp_path):
    rows = simulate(blocks=4)
    resumed = [
        serving for serving in rows["servings"] if serving["block"] == 3 or (serving["block"], serving["arm"]) == (2, "ngram")
    ]
    for row in resumed:
        row["session_id"] = "later"
    number = pick(summary(write_run(tmp_path / "resumed", rows)), "speedup")
    assert number.n == 3
    assert number.note == "CONTROLLED: faster"
    assert number.low > 1


def test_a_serving_that_was_killed_before_it_measured_anything_accuses_nobody(tmp_path):
    rows = simulate()
    rows["servings"].append(serving("ngram", 0, serving_id="killed", ended_ns=None, counters={}, host={}))
    text = printed(write_run(tmp_path / "killed", rows))
    assert "ngram against plain CONTROLLED" in text
    assert "UNKNOWN" not in text


def test_an_arm_that_was_not_measured_yet_is_called_so_and_not_confounded(tmp_path):
    rows = simulate(blocks=1)
    rows["requests"] = [row for row in rows["requests"] if row["arm"] == "plain" or row["concurrency"] == 1]
    text = printed(write_run(tmp_path / "half", rows))
    assert "ngram: not measured beside plain at concurrency 2 yet" in text
    assert "CONFOUNDED" not in text
    assert "0 of 3 blocks" in text


def test_a_run_whose_file_lacks_its_end_beside_all_its_rows_says_so(tmp_path):
    folder = write_run(tmp_path / "run", simulate())
    assert "incomplete" not in printed(folder)
    (folder / "run.json").write_text("{}")
    assert "all 36 cells are measured, and run.json does not say that the run has ended" in " ".join(printed(folder).split())
