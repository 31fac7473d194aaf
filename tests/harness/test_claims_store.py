"""The store of published claims: rebuilt from the CSV files, nothing printed lost, names and flags as documented."""

import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from harness import cli
from harness.claims.build import FILES, FOLDER, STORE, build, readme
from harness.claims.flags import FLAGS
from harness.claims.numbers import Read, read_budget, read_gain, read_number, read_temperature
from harness.claims.rows import canonical
from harness.claims.store import filter_claims, read_claims
from harness.rigs import RIGS


@pytest.fixture(scope="module")
def claims() -> pd.DataFrame:
    return read_claims()


def test_the_store_and_its_page_are_rebuilt_from_the_csv_files() -> None:
    table = build()
    assert pq.read_table(FOLDER / STORE).equals(table)
    assert (FOLDER / "README.md").read_text("utf-8") == readme(table)


def test_every_row_of_both_files_is_there_with_what_was_printed(claims: pd.DataFrame) -> None:
    for kind, name in FILES.items():
        source = pd.read_csv(FOLDER / name, dtype=str, keep_default_na=False)
        ours = claims[claims.claim_id.str.startswith(f"{kind}:")]
        assert list(ours.claim_id) == [f"{kind}:{i}" for i in range(1, len(source) + 1)]
        for column in ("tok_s", "speedup", "acceptance_length", "acceptance_rate", "draft_method", "hardware", "task"):
            assert list(ours[f"{column}_printed"]) == list(source[column])
    assert len(claims) == 2034


def test_every_plain_number_is_read_as_it_stands(claims: pd.DataFrame) -> None:
    for name in ("tok_s", "speedup", "acceptance_length", "acceptance_rate"):
        plain = claims[claims[f"{name}_printed"].str.fullmatch(r"\d+(\.\d+)?")]
        assert len(plain) > 40
        assert (plain[f"{name}_low"] == plain[f"{name}_printed"].astype(float)).all()
        assert (plain[f"{name}_low"] == plain[f"{name}_high"]).all()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2.59", Read(2.59, 2.59)),
        ("1.96-2.59", Read(1.96, 2.59)),
        ("0.87\u20130.96 (avg ~0.93)", Read(0.87, 0.96)),
        ("~0.67", Read(0.67, 0.67, "about")),
        ("up to 6.5", Read(6.5, 6.5, "up to")),
        (">15", Read(15, 15, "over")),
        ("over 6; up to 2.5x EAGLE-3", Read(6, 6, "over")),
        ("1.391 vs DFlash", Read(1.391, 1.391, None, "DFlash")),
        ("1.45 over MTP (not over plain)", Read(1.45, 1.45, None, "MTP (not over plain)")),
        ("55.6 / 210.0", Read(55.6, 210.0)),
        ("141.4 median aggregate", Read(141.4, 141.4)),
        ("0.76/0.56/0.43 unconditional by position", None),
        ("0.425/0.247/0.156", None),
        ("606 total tok/s/GPU (in+out)", None),
        ("~4.9 math / 2.1-2.8 prose", None),
        ("k=7 is 10.3% below k=3", None),
        ("\u2014", None),
        ("", None),
    ],
)
def test_a_number_is_read_as_people_print_it(text: str, found: Read | None) -> None:
    assert read_number(text) == found


def test_budgets_are_drafts_and_schedules_are_not_one_number() -> None:
    texts = [
        "7",
        "7 (steps7 topk1 num_draft_tokens8)",
        "block 5",
        "speculative length 4",
        "12/5/0",
        "3 vs 7",
        "",
        "5-layer drafter",
    ]
    assert [read_budget(text) for text in texts] == [7, 7, 4, 4, None, None, None, None]


def test_a_rate_recorded_as_a_gain_keeps_both_numbers(claims: pd.DataFrame) -> None:
    assert read_gain("recorded as +64%; 20 -> 54 is +170%") == (0.64, 20.0)
    row = claims[claims.claim_id == "seed:51"].iloc[0]
    assert (row.gain, row.baseline_tok_s, row.acceptance_rate_low, row.tok_s_low) == (0.64, 20, 0.64, 54)
    assert {"rate_as_gain", "unread"} <= set(row["flags"])


def test_an_assumed_temperature_is_told_apart_from_a_stated_one() -> None:
    assert [
        read_temperature(t) for t in ("0", "1.0", "greedy", "not stated (usage example 0)", "model default (sampled)", "")
    ] == [
        0.0,
        1.0,
        0.0,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("column", "text", "name"),
    [
        ("method", "DFlash2 dynamic K (12 at bs1 / 5 at bs2-4 / 0 at bs>=5)", "dflash2"),
        ("method", "DFlash (argmax proposal, one-hot q)", "dflash"),
        ("method", "EAGLE-3 (GQA head)", "eagle3"),
        ("method", "EAGLE3", "eagle3"),
        ("method", "none", "plain"),
        ("hardware", "1x NVIDIA GB10 (DGX Spark)", "GB10"),
        ("hardware", "RTX 3090 Ti 24GB (Q4_K_M, 128K)", "RTX 3090 Ti"),
        ("hardware", "RTX 5090 mobile 24GB", "RTX 5090 mobile"),
        ("hardware", "H100 NVL", "H100"),
        ("hardware", "not stated (5090-class)", None),
        ("engine", "vLLM tpu-inference", "tpu_inference"),
        ("engine", "SGLang (inferred)", "sglang"),
        ("engine", "", None),
        ("task", "GSM8K 300 prompts", "gsm8k"),
        ("task", "mean of 5", "several"),
    ],
)
def test_names_are_canonical(column: str, text: str, name: str | None) -> None:
    assert canonical(column, text) == name


def test_methods_and_engines_of_our_rigs_have_the_same_names_here(claims: pd.DataFrame) -> None:
    ours = {"ngram", "ngram_simple", "machinery", "plain_best"}  # rules of ours, and controls that nobody publishes
    assert {path.stem for path in (RIGS / "arm").glob("*.yaml")} - ours <= set(claims.method.dropna())
    assert {"sglang", "vllm", "llama_cpp"} <= set(claims.engine.dropna())


def test_every_flag_is_documented_and_some_rows_carry_the_telling_ones(claims: pd.DataFrame) -> None:
    carried = {flag for flags in claims["flags"] for flag in flags}
    assert carried <= FLAGS.keys()
    assert {"relative_baseline", "forced_acceptance", "cross_engine", "impossible", "rate_as_gain", "lossy"} <= carried
    by_id = claims.set_index("claim_id")["flags"]
    assert "impossible" in by_id["claims:1927"]
    assert "relative_baseline" in by_id["seed:30"]
    assert {"cross_engine", "moved_more"} <= set(by_id["seed:27"])
    assert "moved_more" in by_id["seed:13"]
    assert not set(by_id["claims:4"]) & {"moved_more", "relative_baseline", "speedup_mismatch"}


def test_a_seed_row_whose_measurement_the_large_table_has_too_is_marked_as_repeated(claims: pd.DataFrame) -> None:
    repeated = {row.claim_id: row for row in claims.itertuples() if "repeated" in row.flags}
    assert {"seed:22", "seed:23", "seed:24"} <= set(repeated)
    large = claims[~claims["claim_id"].str.startswith("seed:")]
    for row in repeated.values():
        same = (large["target"] == row.target) & (large["method"] == row.method) & (large["tok_s_low"] == row.tok_s_low)
        assert (same & (large["task"] == row.task)).any()
    assert all(name.startswith("seed:") for name in repeated)


def test_a_changed_rate_in_the_csv_is_flagged(tmp_path: Path) -> None:
    for name in FILES.values():
        lines = (FOLDER / name).read_text("utf-8").splitlines(keepends=True)[:70]
        text = "".join(lines).replace(",GSM8K,1,236.1,3.43,5.46,", ",GSM8K,1,206.1,3.43,9.46,")
        (tmp_path / name).write_text(text, "utf-8")
    row = next(r for r in build(tmp_path).to_pylist() if r["claim_id"] == "claims:4")
    assert {"speedup_mismatch", "length_outside_budget", "impossible"} <= set(row["flags"])


def test_filters_select_what_they_say(claims: pd.DataFrame) -> None:
    found = filter_claims(claims, ["method=dflash2", "hardware=h200", "task=GSM8K", "concurrency=8,32", "tok_s>=1000"])
    assert list(found.claim_id) == ["claims:24", "claims:44", "claims:120", "claims:122"]
    assert set(filter_claims(claims, ["flag=relative_baseline", "flag!=inferred"]).over) == {"mtp", "eagle3", "dflash"}
    assert len(filter_claims(claims, ["hardware=null"])) + len(filter_claims(claims, ["hardware!=null"])) == len(claims)
    assert set(filter_claims(claims, ["draft_method_printed~oracle"]).method) == {"oracle"}


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("metod=mtp", "did you mean 'method'"),
        ("concurrency=x", "concurrency is a number"),
        ("nonsense", "not a condition"),
        ("speedup>=fast", "compares numbers"),
        ("method>=3", "compares numbers"),
        ("flag=relative", "relative_baseline"),
        ("flag>=2", "use flag=NAME"),
    ],
)
def test_a_wrong_condition_is_one_line_that_says_what_to_do(condition: str, told: str, claims: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        filter_claims(claims, [condition])


@pytest.mark.parametrize("key", ["speedup", "tok_s", "budget", "concurrency", "gpus", "temperature"])
def test_a_number_is_the_same_number_however_it_is_written(key: str, claims: pd.DataFrame) -> None:
    value = claims[key].mode()[0]
    ways = [f"{value:g}", f"{float(value)}", f"{float(value):.3f}", f"{float(value):.6e}"]
    for how in ("=", "!="):
        found = [filter_claims(claims, [f"{key}{how}{way}"]).claim_id.tolist() for way in ways]
        assert found[1:] == found[:-1]
        assert found[0]
    assert filter_claims(claims, [f"{key}=null"])[key].isna().all()
    assert not len(filter_claims(claims, [f"{key}=nan"]))


def test_a_row_of_two_models_is_found_by_either_and_no_name_begins_or_ends_with_a_space(claims: pd.DataFrame) -> None:
    both = claims[claims.target_model_printed.str.contains(" / ", regex=False)]
    assert len(both) >= 3
    for row in both.itertuples():
        for model in row.target_model_printed.split(" / "):
            name = model.rpartition("/")[2]
            assert row.claim_id in set(filter_claims(claims, [f"target~{name}"]).claim_id)
    for column in claims.columns:
        words = [word for word in claims[column] if isinstance(word, str) and not column.endswith("_printed")]
        assert [word for word in words if word != word.strip()] == []


def test_the_command_prints_rows_counts_and_flags(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["claims", "method=dflash2", "task=gsm8k", "hardware=H200", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert "9 claims of 4 sources; the first 2 are shown" in out
    assert "dflash2 @7" in out
    assert cli.main(["claims", "--flags"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in FLAGS)
    assert cli.main(["claims", "speedup>=fast"]) == 2
    capsys.readouterr()
    assert cli.main(["claims", "--limit", "-1"]) == 2
    assert capsys.readouterr().err == "error: --limit: -1 is less than no rows; give a number of rows, or 0 for all\n"


def test_the_command_writes_every_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{tmp_path}/xpress.csv"
    assert cli.main(["claims", "method=xpress", "--csv", path]) == 0
    frame = pd.read_csv(path)
    assert len(frame) == int(capsys.readouterr().out.split(": ")[1].split()[0])
    assert {"claim_id", "source", "flags", "speedup_printed"} <= set(frame.columns)


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        (["method=dflash3"], ["method=dflash3: no row meets it; did you mean 'dflash' or 'dflash2'?"]),
        (["method=dflash2", "hardware=H2000"], ["hardware=H2000: no row meets it; did you mean 'H200'"]),
        (["method=zzz"], ["method=zzz: no row meets it; most rows have "]),
        (["speedup>=1000"], ["speedup>=1000: no row meets it"]),
        (["method=plain", "method=dflash2"], ["every condition is met by some row, but no row meets all"]),
    ],
)
def test_where_no_claim_is_found_the_condition_at_fault_is_named(
    conditions: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["claims", *conditions]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "no claim meets this"
    assert len(lines) == len(told)
    assert all(line.strip().startswith(start) for line, start in zip(lines, told, strict=True))
