"""The hash of a configuration: of plain data, so that a stored file can be held against what was measured with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic import CONFIG, simulate, write_run

from harness import cli
from harness.compose import compose_run
from harness.config_hash import config_hash, hashes_of
from harness.report.run import read_run
from harness.rigs import ROOT

SAMPLES = sorted(path.parent for path in (ROOT / "results" / "sample").glob("*/run.json"))
RECORDED = sorted(path.parent for path in (ROOT / "tests" / "recorded" / "runs").glob("*/run.json"))


@pytest.mark.parametrize("rig", ["smoke", "cpu_smollm2_llamacpp", "h200_qwen27b"])
def test_a_saved_configuration_has_the_hash_of_the_run_that_saved_it(rig: str) -> None:
    composed = compose_run(rig)
    assert (
        composed.config_hash == config_hash(composed.run.model_dump(mode="json")) == config_hash(yaml.safe_load(composed.yaml))
    )


def test_a_null_is_no_setting_but_among_an_engine_s_or_a_drafter_s_own() -> None:
    assert config_hash({"a": 1, "b": {"c": None}, "published": {}}) == config_hash({"a": 1, "b": {}, "d": None})
    assert config_hash({"arms": {"x": {"options": {"a": None}}}}) != config_hash({"arms": {"x": {"options": {}}}})
    assert len(hashes_of({"a": None})) == 2, "the first versions hashed nulls"


@pytest.mark.parametrize("folder", [*SAMPLES, *RECORDED], ids=lambda folder: folder.name)
def test_every_run_that_is_kept_here_has_the_configuration_that_was_measured(folder: Path) -> None:
    assert read_run(folder).doubts() == []


def changed(folder: Path, **keys: Any) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **keys}), "utf-8")


@pytest.mark.parametrize("keys", [{"target": {**CONFIG["target"], "name": "Other"}}, {"summary": "x"}, {"extra": 1}])
def test_a_configuration_that_was_not_measured_leaves_every_pair_unknown(keys: dict[str, Any], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", simulate(1, ("plain", "ngram")))
    assert read_run(folder).pair("plain", "ngram", 1).verdict == "CONTROLLED"
    changed(folder, **keys)
    found = read_run(folder).pair("plain", "ngram", 1)
    assert (found.verdict, [f.factor for f in found.of("unknown")]) == ("UNKNOWN", ["config.yaml"])


def test_a_run_file_of_another_configuration_is_found_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", simulate(1, ("plain", "ngram")))
    facts = json.loads((folder / "run.json").read_text("utf-8"))
    (folder / "run.json").write_text(json.dumps({**facts, "config_hash": "f" * 64}))
    assert read_run(folder).pair("plain", "ngram", 1).verdict == "UNKNOWN"


def test_the_configuration_of_another_run_is_told_above_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SAMPLES[0], tmp_path / "run")
    shutil.copy(SAMPLES[1] / "config.yaml", tmp_path / "run" / "config.yaml")
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "config.yaml is not the configuration that was measured; restore it" in told
    assert "CONTROLLED" not in told
    assert "UNKNOWN" in told
