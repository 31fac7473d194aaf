"""`scripts/engine_parsers.py` on a wheel of a few lines in the shape of vLLM's: what its parser does not take is told."""

import sys
import zipfile
from pathlib import Path

import pytest

from scripts import engine_flags, engine_parsers

SOURCES = {
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "vllm/entrypoints/common/cli_args.py": """
import json

def make_arg_parser(parser):
    print("engines print while they are imported")
    parser.add_argument("model")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--speculative-config", type=json.loads)
    return parser

def validate_parsed_serve_args(args):
    if args.max_num_seqs == 13:
        raise ValueError("thirteen is refused after parsing")
""",
    "vllm/config/speculative.py": """
from dataclasses import dataclass
from typing import Literal

@dataclass
class SpeculativeConfig:
    method: Literal["ngram", "eagle3"]
    num_speculative_tokens: int
""",
}
SERVE = ["python", "-m", "vllm", "serve", "model"]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-0.33.0-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in SOURCES.items():
            archive.writestr(name, text)
        archive.writestr("vllm/_C.abi3.so", "a library")
    return path


@pytest.mark.parametrize(
    ("added", "told"),
    [
        (["--max-num-seqs", "4"], "1 flags, taken"),
        (["--max-num-seqs", "four"], "invalid int value: 'four'"),
        (["--max-num", "4"], "--max-num is no flag"),  # argparse itself takes this for --max-num-seqs
        (["--colour", "red"], "--colour is no flag"),
        (["--max-num-seqs", "13"], "thirteen is refused after parsing"),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'], "1 flags, taken"),
        (["--speculative-config", '{"method": "guess"}'], "method='guess': Input should be 'ngram' or 'eagle3'"),
        (["--speculative-config", '{"budget": 4}'], "SpeculativeConfig has no field budget"),
    ],
)
def test_a_command_is_taken_or_what_is_wrong_is_told(
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    added: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(engine_parsers, "commands", lambda engine, version: [("rig arm", [*SERVE, *added])])
    code = engine_parsers.main([sys.executable, str(tmp_path), str(wheel)])
    assert told in capsys.readouterr().out
    assert code == (0 if told.endswith("taken") else 1)
    assert not (tmp_path / "vllm-0.33.0" / "vllm" / "_C.abi3.so").exists()


def test_sources_that_cannot_be_imported_are_no_success(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_parsers, "commands", lambda engine, version: [("rig arm", SERVE)])
    place = engine_parsers.sources(wheel, tmp_path)
    (place / "vllm" / "utils" / "argparse_utils.py").write_text("import a_package_that_is_not_there\n")
    assert engine_parsers.main([sys.executable, str(tmp_path), str(wheel)]) == 1
    assert "cannot be imported" in (out := capsys.readouterr().out)
    assert "No module named 'a_package_that_is_not_there'" in out


def test_strings_of_a_library_are_whole_ones() -> None:
    binary = b"\x7fELF\0--ctx-size\0use --parallel or\0draft-mtp\0--spec-type\0"
    assert engine_flags.whole_strings(binary) == {"--ctx-size", "draft-mtp", "--spec-type"}
