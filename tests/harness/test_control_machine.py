"""The machine under two arms: host, clocks and neighbours that were not the same for both are found and named."""

import pytest
from control_sides import cell, clean, confounders, side, with_cells
from synthetic import serving

from harness.control import compare


def test_a_host_that_changed_is_found_and_its_load_is_not_held_against_it():
    host = serving("ngram")["host"]
    assert confounders(clean("plain"), side("ngram", host=host | {"governor": '"powersave"'})) == ["host governor"]
    assert confounders(clean("plain"), side("ngram", host=host | {"load_1m": "9.0"})) == []


def sampled(arm, *clocks, **given):
    """Clock samples of one GPU inside the measured window, one per 10 ms."""
    sample = {"device": "gpu0", "serving_id": f"b0-{arm}", "utilization": 0.9} | given
    return [sample | {"at_ns": (i + 1) * 10_000_000, "clock_mhz": mhz} for i, mhz in enumerate(clocks)]


def test_a_clock_that_ran_slower_is_found():
    fast, slow, near = [1950.0, 1950.0, None, 1940.0], [1769.0, 1775.0, 1770.0], [1945.0, 1950.0, 1935.0]
    plain = side("plain", samples=sampled("plain", *fast))
    assert confounders(plain, side("ngram", samples=sampled("ngram", *slow))) == ["clock of gpu0"]
    assert confounders(plain, side("ngram", samples=sampled("ngram", *near))) == []


def test_idle_samples_and_those_outside_the_windows_say_nothing_of_the_clock():
    plain = side("plain", samples=sampled("plain", 1950.0))
    idle = sampled("ngram", 300.0, utilization=0.0) + sampled("ngram", 1950.0)
    late = [row | {"at_ns": 10**12} for row in sampled("ngram", 300.0)]
    assert confounders(plain, side("ngram", samples=idle + late)) == []


def test_a_clock_that_is_stuck_low_in_both_arms_is_found():
    host = serving("plain")["host"] | {"gpu0_max_clock_mhz": "2281"}
    plain, arm = (side(name, samples=sampled(name, 799.0), host=host) for name in ("plain", "ngram"))
    assert confounders(plain, arm) == ["clock of gpu0 stuck"]


def test_few_samples_and_a_wandering_clock_are_notes():
    plain, arm = (side(name, samples=sampled(name, *[1900.0, 1700.0] * 10)) for name in ("plain", "ngram"))
    found = compare(plain, arm, 1)
    assert found.verdict == "CONTROLLED"
    assert [f.plain for f in found.of("note")] == ["20 samples", "spread 11 %"]


def test_notes_change_no_verdict():
    found = compare(clean("plain"), side("ngram", foreign_processes=["make"], flags=["client: lag 3 ms"]), 1)
    assert found.verdict == "CONTROLLED"
    assert [f.factor for f in found.of("note")] == ["other processes", "flag"]


def test_a_foreign_process_on_the_gpu_confounds():
    foreign = ["gpu pid 999", "make (pid 3) 0.5 cores"]
    found = compare(clean("plain"), side("ngram", foreign_processes=foreign), 1)
    assert [(f.factor, f.arm) for f in found.of("confounder")] == [("foreign_processes", "gpu pid 999")]


def test_a_neighbour_on_the_cpu_confounds_beyond_the_machine_s_limit():
    """Weighted by time: half a second of a compiler in ten is no neighbour. What an attached server did is unknown."""
    limited = {"host": {"load_limit_cores": "0.3"}}
    cells = {
        "idle": [cell("plain", busy_cores=0.05)],
        "short": [
            cell("plain", ended_ns=500_000_000, busy_cores=1.0),
            cell("plain", cell_id="long", ended_ns=10**10, busy_cores=0.0),
        ],
        "busy": [cell("plain", busy_cores=1.93)],
        "stolen": [cell("plain", busy_cores=0.0, stolen_cores=0.8)],
        "unknown": [cell("plain", busy_cores=None)],
    }
    found = {
        name: confounders(with_cells("plain", *rows, **limited), with_cells("ngram", cell("ngram", busy_cores=0.1), **limited))
        for name, rows in cells.items()
    }
    assert found == {"idle": [], "short": [], "busy": ["busy cores"], "stolen": ["stolen cores"], "unknown": []}
    both = (with_cells(arm, cell(arm, busy_cores=cores), **limited) for arm, cores in (("plain", 1.56), ("ngram", 1.57)))
    (finding,) = compare(*both, 1).of("confounder")
    assert str(finding).startswith("busy cores (1.57 and 1.56, limit 0.3): ")
    without = {"host": {"load_limit_cores": "null"}}
    assert confounders(with_cells("plain", *cells["busy"], **without), side("ngram", **without)) == []


@pytest.mark.parametrize("column", ["busy_cores", "stolen_cores"])
@pytest.mark.parametrize("told", ["nothing", "null", "some"])
def test_neighbours_that_were_not_read_leave_a_machine_with_a_limit_unknown(column, told):
    """Cells without a row, rows that do not tell, and one of two cells that does not: none of them was an idle machine."""
    quiet, limited = {"busy_cores": 0.01, "stolen_cores": 0.0}, {"host": {"load_limit_cores": "0.3"}}
    read = with_cells("plain", cell("plain", **quiet), **limited)
    assert compare(read, with_cells("ngram", cell("ngram", **quiet), **limited), 1).verdict == "CONTROLLED"
    untold = cell("ngram", **{**quiet, column: None})
    rows = {"nothing": [], "null": [untold], "some": [cell("ngram", **quiet), {**untold, "cell_id": "other"}]}[told]
    found = compare(read, with_cells("ngram", *rows, **limited), 1)
    assert found.verdict == "UNKNOWN"
    of_column = {f.factor: f.arm for f in found.of("unknown")}[column.replace("_", " ")]
    assert of_column == f"not read in 1 of {2 if told == 'some' else 1} cells"
    everywhere = {"host": {"load_limit_cores": "null"}}
    without = (with_cells("plain", **everywhere), with_cells("ngram", *rows, **everywhere))
    assert compare(*without, 1).verdict == "CONTROLLED", "on a GPU neighbours are seen by other means"
