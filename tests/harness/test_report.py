"""The printed table and the tidy summary agree, fit the console, and never show what may not be shown."""

import re
from copy import deepcopy

import numpy as np
import pytest
import scipy.stats
from printed_report import pick, printed
from synthetic import CONFIG, simulate, write_run

from harness.report import summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("results") / "three-blocks", simulate())


@pytest.fixture(scope="module")
def numbers(folder):
    return summary(folder)


def test_every_number_is_there_once(numbers):
    keys = numbers[["content_class", "concurrency", "arm", "metric"]]
    assert not keys.duplicated().any()
    assert set(numbers.content_class) == {"code", "chat", "all"}
    assert set(numbers.run_id) == {"three-blocks"}


def test_the_summary_has_the_known_values(numbers):
    assert pick(numbers, "ttft_ms_p50").value == 100
    assert pick(numbers, "tokens_per_step", "plain").value == 1.0
    assert pick(numbers, "acceptance_length").value == pytest.approx(3, abs=0.2)
    assert pick(numbers, "acceptance_rate").budget == 4
    assert pick(numbers, "coverage").value == 1.0
    assert pick(numbers, "position_rate_marginal_1").value == pytest.approx(0.8, abs=0.05)
    assert pick(numbers, "drafter_memory").value == 2**28
    assert pick(numbers, "identity_errors").value == 0
    assert pick(numbers, "prefill_tps_to_128_p50").value == pytest.approx(750)
    assert pick(numbers, "output_tps", "plain", concurrency=2).value == pytest.approx(2 * 37 / (0.1 + 36 * 0.02), rel=0.03)


def test_acceptance_has_intervals_over_prompts_not_over_requests(tmp_path):
    rows = simulate(3)
    folder = write_run(tmp_path / "run", rows)
    lengths: dict[str, list[float]] = {}
    for row in rows["requests"]:
        if row["arm"] == "ngram" and row["concurrency"] == 1 and row["content_class"] == "code":
            accepted = [n for n, drafted in zip(row["step_accepted"], row["step_drafted"], strict=True) if drafted]
            lengths.setdefault(row["prompt_id"], []).append(1 + sum(accepted) / len(accepted))
    means = np.array([np.mean(each) for each in lengths.values()])
    assert {len(each) for each in lengths.values()} == {3}
    low, high = scipy.stats.t.interval(0.95, len(means) - 1, means.mean(), scipy.stats.sem(means))
    found = pick(summary(folder), "acceptance_length_request_mean")
    assert (found.value, found.low, found.high) == pytest.approx((means.mean(), low, high))
    for metric in ("acceptance_length", "acceptance_rate"):
        number = pick(summary(folder), metric)
        assert number.low < number.value < number.high


def test_a_null_carries_its_reason(numbers):
    length = pick(numbers, "acceptance_length", "plain")
    assert (length.isna().value, length.note) == (True, "plain_arm")
    assert pick(numbers, "prefill_tps_p50", concurrency=2).note == "queued"
    assert pick(numbers, "latency_speedup").note == "lengths_differ"


def test_a_speedup_carries_interval_claim_and_verdict(numbers):
    fast, same = pick(numbers, "speedup"), pick(numbers, "speedup", "plain2", "all")
    assert fast.low < fast.value < fast.high
    assert fast.note == "CONTROLLED: faster"
    assert same.note.startswith("CONTROLLED: no detected difference (detectable: ")
    assert numbers[(numbers.metric == "speedup") & (numbers.arm == "plain")].empty


@pytest.mark.parametrize("width", [120, 80])
def test_the_table_fits_and_holds_every_column(folder, width):
    text = printed(folder, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for heading in ("tok/s", "speedup", "@depth", "p50/p95", "TPOT", "length", "rate @K", "/step", "/drafter", "errors"):
        assert heading in text
    assert "0.52 @K=4" in text
    assert "baseline" in text
    assert "control: ngram against plain CONTROLLED" in text
    assert "~ code: no detected difference" in text


@pytest.mark.parametrize(("blocks", "said"), [(2, "up to 12.7 standard"), (5, "up to 2.8 standard")])
def test_a_difference_that_was_not_detected_says_how_wide_its_interval_is_and_why(tmp_path, blocks, said):
    text = " ".join(printed(write_run(tmp_path / "run", simulate(blocks), CONFIG)).split())
    assert text.count("how wide and why") == 2, "once per concurrency"
    assert said in text
    assert ("2.8 with 5" in text) == (blocks < 5)
    one = printed(write_run(tmp_path / "one", simulate(1), CONFIG))
    assert "how wide" not in one


def test_the_table_prints_what_the_summary_holds(folder, numbers):
    text, fast = printed(folder), pick(numbers, "speedup")
    assert f"{fast.value:.2f}x [{fast.low:.2f}, {fast.high:.2f}]" in text
    assert f"{pick(numbers, 'output_tps').value:.1f}" in text
    assert f"{pick(numbers, 'tpot_ms_p50').value:.2f}" in text


def test_the_header_says_what_was_held_still(folder):
    text = printed(folder)
    for words in ("synthetic: made for a test", "Tiny · float32", "reference (torch 2.13.0)", "Test CPU · 2 cores · 16 GiB"):
        assert words in text
    for words in ("greedy · stop natural", "screen · 3 of 3 blocks", "three-blocks", "concurrency 1", "concurrency 2"):
        assert words in text
    assert "incomplete" not in text


def test_one_block_is_descriptive_and_a_cut_run_says_so(tmp_path):
    text = printed(write_run(tmp_path / "run", simulate(1, ("plain", "ngram"))))
    assert "x descriptive" in text
    assert "8 of 36 cells are measured" in text
    assert "0 of 3 blocks" in text
    assert "  ~ " not in text


def test_a_confounded_pair_prints_no_speedup(tmp_path):
    rows = simulate(2)
    for row in rows["servings"]:
        if row["arm"] == "ngram":
            row["resolved"]["dtype"] = '"bfloat16"'
    folder = write_run(tmp_path / "run", rows)
    lines = [line for line in printed(folder).splitlines() if line.startswith("  ngram")]
    assert lines
    assert all("confounded" in line and "x [" not in line for line in lines)
    assert 'confounded by dtype ("bfloat16" against "float32")' in printed(folder)
    assert pick(summary(folder), "speedup").note.startswith("CONFOUNDED: ")


def test_a_confounded_speedup_is_struck_and_labelled_on_demand_and_never_bare(tmp_path):
    rows = simulate(2)
    for row in rows["servings"]:
        if row["arm"] == "ngram":
            row["resolved"]["dtype"] = '"bfloat16"'
    text = printed(write_run(tmp_path / "run", rows), allow_confounded=True)
    lines = [line for line in text.splitlines() if line.startswith("  ngram")]
    assert len(lines) == 6
    assert all(re.search(r"~~\d\.\d\dx~~ confounded", line) and "[" not in line for line in lines)


def test_what_is_implied_or_unknown_is_marked_beside_the_number(tmp_path):
    for factor, value, mark in (("kv_tokens", "3000", "†"), ("linear", "null", "?")):
        rows = simulate(2)
        for row in rows["servings"]:
            if row["arm"] == "ngram":
                row["resolved"][factor] = value
        lines = [line for line in printed(write_run(tmp_path / factor, rows)).splitlines() if line.startswith("  ngram")]
        assert all(f"] {mark}" in line for line in lines)


def test_a_confounder_of_one_class_leaves_the_others_of_its_level(tmp_path):
    rows = simulate(2)
    for row in rows["requests"]:
        if row["arm"] == "ngram" and row["prompt_set"] == "chat" and row["concurrency"] == 1:
            row["cached_tokens"] = 50
    folder = write_run(tmp_path / "run", rows)
    numbers = summary(folder)
    verdicts = {content: pick(numbers, "speedup", content=content).note.split(":")[0] for content in ("code", "chat", "all")}
    assert verdicts == {"code": "CONTROLLED", "chat": "CONFOUNDED", "all": "CONFOUNDED"}
    assert pick(numbers, "speedup", content="chat", concurrency=2).note.startswith("CONTROLLED")
    assert "control: ngram against plain CONTROLLED in code, CONFOUNDED in chat" in printed(folder)


def test_two_drafters_that_differ_in_more_than_the_drafter_are_told_apart(tmp_path):
    rows = simulate(2, ("plain", "mtp", "eagle3"))
    for row in rows["servings"]:
        if row["arm"] != "plain":
            row["resolved"] |= {"drafter": f'"{row["arm"]}"', "draft_graphs": str(row["arm"] == "eagle3").lower()}
    text = printed(write_run(tmp_path / "run", rows))
    assert "control: mtp against eagle3 CONFOUNDED" in text
    assert "confounded by draft_graphs (false against true)" in text
    assert "control: eagle3 against plain CONTROLLED" in text


def test_a_coalesced_stream_refuses_time_per_token_in_the_table(tmp_path):
    rows = simulate(2)
    for row in rows["requests"]:
        if row["arm"] == "ngram":
            row["chunk_tokens"] = [row["chunk_tokens"][0], *[0] * (len(row["chunk_tokens"]) - 2), sum(row["chunk_tokens"][1:])]
    text = printed(write_run(tmp_path / "run", rows))
    assert "refused" in text
    told = "refused: decode_speedup of ngram, plain2; tpot_ms, per_user_tps, chunk_gap_ms, step_ms of ngram: a chunk holds more"
    assert told in " ".join(text.split())


def test_what_short_answers_lack_is_named_with_the_reason(tmp_path):
    rows = simulate(2)
    for row in rows["requests"]:
        row |= {"chunk_ns": row["chunk_ns"][:1], "chunk_tokens": row["chunk_tokens"][:1], "chunk_reasoning": [False]}
    text = printed(write_run(tmp_path / "run", rows))
    assert re.search(
        r"^refused: tpot_ms, per_user_tps; decode_speedup of ngram, plain2: no token arrived after the first chunk", text, re.M
    )
    assert "no prompt succeeded" not in text


def test_failures_are_counted_and_confound(tmp_path):
    rows = simulate(2)
    failed = next(row for row in rows["requests"] if row["arm"] == "ngram")
    failed |= {"error": "TimeoutError: no end", "finish": None}
    numbers = summary(write_run(tmp_path / "run", rows))
    assert pick(numbers, "error_rate").value == pytest.approx(1 / 12)
    assert pick(numbers, "error_rate").n == 12
    assert pick(numbers, "ttft_ms_p50").n == pick(numbers, "ttft_ms_p50", "plain").n == 11
    assert pick(numbers, "speedup").note.startswith("CONFOUNDED")


def test_fixed_length_is_labelled_and_acceptance_ends_at_the_stop_token(tmp_path):
    rows, config = simulate(2), deepcopy(CONFIG)
    config["workload"]["stop"] = "fixed"
    for row in rows["requests"]:
        row["ignore_eos"] = True
    folder = write_run(tmp_path / "untold", rows, config)
    assert pick(summary(folder), "acceptance_length").note == "text after a stop token included"
    assert "stop fixed" in printed(folder)
    assert "(fixed length)" in printed(folder)
    for row in rows["requests"]:
        row["token_ids"] = [7 if i == 5 else 1 for i in range(row["output_tokens"])]
    for row in rows["servings"]:
        row["resolved"]["stop_ids"] = '"7,8"'
    numbers = summary(write_run(tmp_path / "told", rows, config))
    assert pick(numbers, "acceptance_length").note == ""
    steps = pick(numbers, "position_rate_marginal_1").n
    assert pick(numbers, "tokens_per_step").n == 12
    assert steps == 12 * 12


def test_depths_are_printed_where_a_class_has_several(tmp_path):
    rows = simulate(1, ("plain", "ngram"))
    for row in rows["requests"]:
        if row["prompt_set"] == "chat":
            row["prompt_tokens"] = 1000 if row["prompt_id"] in ("p0", "p1") else 2000
    text = printed(write_run(tmp_path / "run", rows))
    assert "prefill tok/s by depth, chat: plain 10000 @≤1024, 20000 @≤2048; ngram" in text
    assert "by depth, code" not in text


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        summary(tmp_path)


def test_notes_are_told_once_and_alike_ones_together(tmp_path):
    rows = simulate(2)
    for row in rows["servings"]:
        row["flags"] = [f"client: event-loop lag p99 is {row['block'] + 2}.5 ms; the client may limit the rate"]
    text = printed(write_run(tmp_path / "run", rows))
    assert text.count("note: client: event-loop lag p99 is 2.5 ms; the client may limit the rate (and 1 like it)") == 1
    assert "CONTROLLED" in text
