"""What was measured, on what, in which way: the lines above the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from harness.metrics import as_map, integer
from harness.report.run import FinishedRun
from harness.run_file import FILE


def header(run: FinishedRun) -> Table:
    """Two columns, name and value; wraps to the console."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in header_lines(run):
        grid.add_row(name, value)
    return grid


def header_lines(run: FinishedRun) -> list[tuple[str, str]]:
    """Rig, target, engine, machine, sampler, stop rule, protocol and run, each in words."""
    config = run.config
    lines = [
        ("rig", f"{config['name']}: {config['summary']}"),
        ("target", _target(config["target"])),
        ("engine", _engine(run)),
        ("machine", _machine(run)),
        ("sampling", f"{_sampler(config['sampler'])} · {_stop(config['workload'])}"),
        ("protocol", _protocol(run)),
        ("run", run.run_id),
        *(("config", str(doubt)) for doubt in run.doubts()),
    ]
    return [*lines, ("incomplete", text)] if (text := _incomplete(run)) else lines


def _incomplete(run: FinishedRun) -> str:
    """What is still to come; empty for a run with an end and all its cells."""
    done, asked = run.cells()
    if run.being_measured:
        return f"being measured now, {done} of {asked} cells so far"
    if done < asked:
        return f"{done} of {asked} cells are measured; the same command resumes"
    if run.to_go_on and done:
        return f"all {done} cells are measured, and {FILE} does not say that the run has ended; restore it, or resume it"
    return ""


def _target(target: dict[str, Any]) -> str:
    return f"{target['name']} · {target['dtype']} · weights {target['quantization']} · context {target['context']}"


def _engine(run: FinishedRun) -> str:
    engine = run.config["engine"]
    label = _build(str(engine["adapter"]).split(".")[-2], as_map(run.servings[0]["versions"]) if run.servings else {})
    cache = "on" if engine["prefix_cache"] else "off"
    return (
        f"{label} · graphs {engine['graphs']} · KV {_kv_tokens(run)} tokens {engine['kv_dtype']}"
        f" · at most {engine['max_running_requests']} requests · prefix cache {cache}"
    )


# What an engine is built of, where that does not bear its name. Versions hold the harness's own packages too, such as torch.
BUILT_OF = {"llama_cpp": ("llama.cpp", "xllamacpp"), "reference": ("torch",)}


def _build(engine: str, versions: Mapping[str, Any]) -> str:
    """`vllm 0.33.0`, or what the engine is built of: `reference (torch 2.13.0)`."""
    if engine in versions:
        return f"{engine} {versions[engine]}"
    parts = ", ".join(f"{name} {versions[name]}" for name in BUILT_OF.get(engine, ()) if name in versions)
    return f"{engine} ({parts})" if parts else engine


def _kv_tokens(run: FinishedRun) -> str:
    """The least that a serving held, and what was asked for where that is not the same; what was asked when none was read."""
    asked = int(run.config["engine"]["kv_tokens"])
    found = [integer(_plain(as_map(row["resolved"]).get("kv_tokens"))) for row in run.servings]
    held = min((tokens for tokens in found if tokens is not None), default=asked)
    return str(asked) if held == asked else f"{held} ({asked} asked)"


def _machine(run: FinishedRun) -> str:
    facts = {k: _plain(v) for k, v in as_map(run.servings[0]["host"]).items()} if run.servings else {}
    parts = [str(v) for k, v in facts.items() if k in ("gpu_name", "cpu_model")]
    if cores := facts.get("usable_cores") or facts.get("physical_cores"):
        parts.append(f"{cores} cores")
    if memory := facts.get("memory_bytes"):
        parts.append(f"{int(memory) / 2**30:.0f} GiB")
    return " · ".join(parts) or str(run.config["machine"]["kind"])


def _plain(text: Any) -> Any:
    """A JSON scalar's value."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _sampler(sampler: dict[str, Any]) -> str:
    if sampler["temperature"] == 0:
        return "greedy"
    return f"T={sampler['temperature']:g} top_p={sampler['top_p']:g} top_k={sampler['top_k']} seed={sampler['seed']}"


def _stop(workload: dict[str, Any]) -> str:
    if workload["stop"] == "fixed":
        return "stop fixed: every output forced to its limit, its tail is degenerate text"
    return "stop natural: answers end at a stop token or their limit"


def _protocol(run: FinishedRun) -> str:
    protocol, blocks = run.config["protocol"], run.complete_blocks()
    load = "closed loop" if protocol["load"] == "closed" else f"open loop {protocol['rate_rps']:g}/s"
    count = f"{blocks} of {protocol['blocks']} blocks"
    prompts = f"{protocol['prompts_per_set']} prompts a set"
    return f"{protocol['name']} · {count} · {prompts}{_longest(run.config)} · {load}"


def _longest(config: Mapping[str, Any]) -> str:
    """The highest output limit of a request, as `harness.config.Run.max_tokens` has it; nothing where no set states one."""
    limits = [int(one["max_tokens"]) for one in config["workload"]["sets"] if "max_tokens" in one]
    cap = config["protocol"].get("max_tokens_cap")
    if not limits:
        return ""
    return f" · answers to {max(limits) if cap is None else min(int(cap), max(limits))} tokens"
