"""Every figure has marks, words and its data; what the run has no data for is no figure."""

import re

import pytest
import six_arms
from synthetic import simulate, write_run

from harness.report.figures import FIGURES, chart_svg, charts, figure, panel_svg, source


@pytest.fixture(scope="module")
def six(six_arms_folder):
    return source(six_arms_folder)


@pytest.fixture(scope="module")
def drawn(six):
    return {chart.key: chart for chart in charts(six)}


def test_a_run_of_all_arms_fills_every_figure(drawn):
    assert len(drawn) == len(FIGURES)


def test_every_panel_has_marks_and_words(drawn):
    for chart in drawn.values():
        for i, panel in enumerate(chart.panels):
            svg = panel_svg(panel, f"{chart.key}-{i}", chart.alt)
            assert svg.count('class="mark"') >= 1, (chart.key, panel.title)
            assert re.search(r"<title id=\S+>[^<]+</title><desc id=\S+>[^<]{40,}</desc>", svg), chart.key
            assert "#1b1f24" not in svg  # ink follows the paper
            assert "var(--" in svg


def test_every_figure_names_its_arms_and_holds_their_numbers(drawn):
    for chart in drawn.values():
        assert len(chart.data) >= 5
        assert "dflash2" in chart.alt or chart.key == "timeline"
        assert chart.caption.endswith((".", ". "))
    assert set(drawn["speedup"].data.arm) == {"ngram", "mtp", "eagle3", "dflash", "dflash2", "plain2"}


def test_the_speedup_figure_shows_the_numbers_of_the_summary(six, drawn):
    shown = drawn["speedup"].data.set_index(["concurrency", "content_class", "arm"]).speedup_ratio.dropna()
    told = six.pick("speedup").set_index(["concurrency", "content_class", "arm"]).value
    assert (shown == told[shown.index]).all()


def test_times_per_token_divide_steps_by_their_tokens(drawn):
    plain = drawn["decomposition"].data.query("arm == 'plain' and concurrency == 1").iloc[0]
    assert plain.verify_ms == pytest.approx(18, rel=0.03)
    assert plain.total_ms == pytest.approx(plain.draft_ms + plain.verify_ms + plain.machinery_ms)


def test_memory_says_what_the_drafter_took_from_the_cache(drawn):
    assert "dflash 228" in drawn["memory"].caption
    assert drawn["memory"].data.set_index("arm").kv_tokens_lost["mtp"] == 0


def test_the_same_run_gives_the_same_bytes(six, drawn):
    chart = drawn["acceptance"]
    assert panel_svg(chart.panels[0], "a", chart.alt) == panel_svg(chart.panels[0], "a", chart.alt)


def test_a_file_of_its_own_follows_the_readers_colour_scheme(drawn):
    svg = chart_svg(drawn["speedup"])
    assert svg.startswith("<svg")
    assert "prefers-color-scheme:dark" in svg
    assert ">dflash2<" in svg  # its own legend


def test_a_notebook_gets_every_panel_on_one_figure(drawn):
    whole = figure(drawn["positions"])
    assert len(whole.axes) == len(drawn["positions"].panels)


def test_in_text_a_chart_is_its_words_and_no_address(drawn):
    for chart in drawn.values():
        assert repr(chart) == f"{chart.title}. {chart.alt}"


def test_a_confounded_pair_is_named_and_has_no_point(tmp_path):
    rows = simulate(2)
    for row in rows["servings"]:
        if row["arm"] == "ngram":
            row["resolved"]["dtype"] = '"bfloat16"'
    chart = next(charts(source(write_run(tmp_path / "run", rows))))
    assert chart.data[chart.data.arm == "ngram"].speedup_ratio.isna().all()
    assert "ngram: confounded" in panel_svg(chart.panels[0], "x", chart.alt)


def test_what_was_not_measured_is_no_figure(tmp_path):
    keys = [chart.key for chart in charts(source(write_run(tmp_path / "run", simulate(1, ("plain",)))))]
    assert keys == ["latency"]


def test_synthetic_samples_of_a_gpu_run_are_drawn_as_power_clock_and_temperature(drawn):
    chart = drawn["timeline"]
    panels = {panel.title: panel_svg(panel, f"gpu-{i}", chart.alt) for i, panel in enumerate(chart.panels)}
    seen = chart.data.set_index(["quantity", "device"]).sort_index()
    for quantity, unit, low, high in (("power", "W", 300, 340), ("clock", "MHz", 1920, 1980), ("temperature", "degC", 55, 58)):
        assert panels[quantity].count('class="mark"') == 1  # the GPU's line; the host tells none of them
        assert f">{unit}<" in panels[quantity]
        assert seen.loc[(quantity, "gpu0"), "min"].min() >= low
        assert seen.loc[(quantity, "gpu0"), "max"].max() <= high
    assert panels["memory of the serving"].count('class="mark"') == 2
    assert "Not reported" not in chart.caption


def test_panels_that_average_steps_tell_how_many(drawn):
    steps = drawn["positions"].data.query("concurrency == 1 and content_class == 'all'").steps_with_a_draft
    assert drawn["positions"].panels[0].title == f"all, n={steps.min():.0f} to {steps.max():.0f}"
    assert f"n={drawn['decomposition'].data.query('concurrency == 1').steps.min()} to" in panel_svg(
        drawn["decomposition"].panels[0], "steps", "words"
    )


def test_two_sessions_lie_apart_on_the_timeline(tmp_path):
    early, late = (
        six_arms.simulate(1, ("plain", "ngram")),
        six_arms.simulate(1, ("plain", "ngram"), launched="2026-01-01T02:00:00+00:00"),
    )
    for table in late.values():
        for row in table:
            row["serving_id"], row["block"] = f"late-{row['serving_id']}", 1
            if "cell_id" in row:
                row["cell_id"] = f"late-{row['cell_id']}"
    both = {name: [*early[name], *late[name]] for name in early}
    chart = next(c for c in charts(source(six_arms.write(tmp_path / "run", both))) if c.key == "timeline")
    assert 119 < chart.data.minute.max() < 125
