"""Flags and variables that a rig sets for its engine, under the factors that they mean there."""

from __future__ import annotations

from harness.audit.account import Fact, Origin
from harness.audit.flags import STYLES, Given, flag_table, lasting, split_flags
from harness.audit.meaning import env_facts, facts_of, meaning_table
from harness.config import Run

Value = str | int | float | bool | None


def engine_name(run: Run) -> str:
    """The adapter's module: `harness.engines.vllm.VllmEngine` is vllm."""
    return run.engine.adapter.split(".")[-2]


def flag_facts(run: Run, origin: Origin) -> dict[str, Fact]:
    """Facts of `engine.flags` and `engine.env`. An engine without a flag table keeps its own names."""
    engine = engine_name(run)
    if engine not in STYLES:
        flags = {f"flag.{name}": (str(value), f"engine.flags.{name}") for name, value in run.engine.flags.items()}
        env = {f"env.{name}": (value, f"engine.env.{name}") for name, value in run.engine.env.items()}
        return {name: Fact(value, origin, where) for name, (value, where) in {**flags, **env}.items()}
    found = facts_of(engine, _given(engine, run), origin)
    for name, fact in env_facts(engine, run.engine.env).items():
        found[name] = Fact(fact.value, origin, f"engine.env.{fact.where}")
    return found


def _given(engine: str, run: Run) -> dict[str, Given]:
    """The rig's flags as the engine's own parser takes them: aliases, off spellings and all."""
    words: list[str] = []
    off: list[Given] = []
    for name, value in run.engine.flags.items():
        if value is False:
            off.append(Given(flag_table(engine).aliases.get(f"--{name}", name), False, f"engine.flags.{name}"))
        elif value is not None:
            words += [f"--{name}"] if value is True else [f"--{name}", *_words(value)]
    given, _ = split_flags(engine, words, meaning_table(engine).other_releases)
    return lasting([*off, *(Given(one.name, one.value, f"engine.flags.{one.token.lstrip('-')}", one.known) for one in given)])[
        0
    ]


def _words(value: Value) -> list[str]:
    return str(value).split() if isinstance(value, str) and not value.lstrip().startswith(("{", "[")) else [str(value)]
