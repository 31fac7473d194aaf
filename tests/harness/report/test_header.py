"""The lines above a table name what was measured, and nothing that took no part in it."""

from __future__ import annotations

import pytest
from synthetic import CONFIG, simulate, write_run

from harness.report import LEGEND
from harness.report.header import header_lines
from harness.report.run import read_run
from harness.report.table import DRAFTING, SPEED

OURS = {"python": "3.11.7", "torch": "2.13.0+cpu"}  # the harness's own, told beside the engine's


@pytest.mark.parametrize(
    ("engine", "versions", "shown"),
    [
        ("reference", {}, "reference (torch 2.13.0+cpu)"),
        ("vllm", {"vllm": "0.33.0"}, "vllm 0.33.0"),
        ("llama_cpp", {"llama.cpp": "b11434"}, "llama_cpp (llama.cpp b11434)"),
        ("llama_cpp", {"llama.cpp": "b0", "xllamacpp": "2026.10"}, "llama_cpp (llama.cpp b0, xllamacpp 2026.10)"),
        ("openai", {}, "openai"),
    ],
)
def test_an_engine_is_told_with_its_own_build_and_never_with_the_torch_of_the_harness(engine, versions, shown, tmp_path):
    rows = simulate(1, ("plain", "ngram"))
    for row in rows["servings"]:
        row["versions"] = OURS | versions
    config = {**CONFIG, "engine": {**CONFIG["engine"], "adapter": f"harness.engines.{engine}.Engine"}}
    told = dict(header_lines(read_run(write_run(tmp_path / "run", rows, config))))
    assert told["engine"].split(" · ")[0] == shown


def test_the_legend_explains_every_heading_of_the_table():
    told = LEGEND.replace("\n", " ")
    words = {column.heading.split()[0] for column in (*SPEED, *DRAFTING)}
    assert words == {"out", "speedup", "prefill", "TTFT", "TPOT", "accept", "tokens", "GiB", "errors"}
    for word in ("n", *(words - {"accept", "tokens"}), "accept length", "accept rate", "tokens/step"):
        assert f" {word}: " in f" {told}", word
