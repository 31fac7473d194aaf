"""The generated page of the results folder."""

from harness.docs import README, render
from harness.records import TABLES


def test_the_page_is_up_to_date():
    assert README.read_text("utf-8") == render(), "run: python -m harness.docs"


def test_every_column_and_metric_is_on_the_page():
    page = render()
    for table in TABLES:
        for column in table.columns:
            assert f"| `{column.name}` | {column.type} |" in page
    for metric in ("acceptance_length", "tokens_per_step", "tpot_ms", "output_tps", "output_speedup", "PositionRates.marginal"):
        assert f"- `{metric}`: " in page
