"""Gives commands to an engine's own argument parser. Run by `engine_parsers.py` in an interpreter that can import the engine.

    python parse_commands.py vllm|sglang < {"name": ["words", ...], ...} > {"name": ["what is wrong", ...], ...}

Imports nothing of this repository. `argparse` takes any unique beginning of a flag for the flag, so flags are compared in full.
Values inside vLLM's --speculative-config, which its parser only reads as JSON, are judged by the types of SpeculativeConfig.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints
from unittest.mock import MagicMock

SERVE, LAUNCH = "serve", "sglang.launch_server"
FRONTS = ("common", "launchers", "openai")
# What SGLang imports on the way to its parser and parsing does not touch: pictures in notebooks, JSON of its server.
BESIDE = ("IPython", "IPython.display", "orjson")


def vllm_parser() -> argparse.ArgumentParser:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: argparse.ArgumentParser = vllm_front().make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    return parser


def vllm_front() -> Any:
    """The module with the arguments of `vllm serve`, which has moved between releases."""
    for part in FRONTS:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"vllm.entrypoints.{part}.cli_args")
    raise ModuleNotFoundError(f"vllm.entrypoints has no cli_args in any of {', '.join(FRONTS)}; add where it is now")


def sglang_parser() -> argparse.ArgumentParser:
    for name in BESIDE:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            sys.modules[name] = MagicMock()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


def faults(engine: str, parser: argparse.ArgumentParser, words: list[str]) -> Iterator[str]:
    own = words[words.index(SERVE if engine == "vllm" else LAUNCH) + 1 :]
    known = set(parser._option_string_actions)  # with flags that an action accepts and does not list
    yield from (f"{word} is no flag" for word in own if word.startswith("--") and word not in known)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            args = parser.parse_args(own)
        except SystemExit:
            yield said.getvalue().strip().splitlines()[-1]
            return
    if engine == "vllm":
        yield from vllm_faults(args)


def vllm_faults(args: Any) -> Iterator[str]:
    """What `vllm serve` checks right after parsing, and the drafter's configuration field by field."""
    from vllm.config.speculative import SpeculativeConfig

    try:
        vllm_front().validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        yield str(error)
    yield from config_faults(SpeculativeConfig, args.speculative_config or {})


def config_faults(owner: type, config: dict[str, Any]) -> Iterator[str]:
    from pydantic import TypeAdapter, ValidationError

    # vLLM's is a dataclass; a class that is none raises TypeError here.
    fields = {field.name for field in dataclasses.fields(owner)}
    hints = get_type_hints(owner, include_extras=True)
    for name, value in config.items():
        if name not in fields:
            yield f"--speculative-config: {owner.__name__} has no field {name}"
            continue
        try:
            TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            yield f"--speculative-config: {name}={value!r}: {error.errors()[0]['msg']}"


def main(engine: str) -> int:
    commands: dict[str, list[str]] = json.load(sys.stdin)
    answer = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # engines print while they are imported
        parser = vllm_parser() if engine == "vllm" else sglang_parser()
        found = {name: list(faults(engine, parser, words)) for name, words in commands.items()}
    json.dump(found, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
