"""Commands that our own adapters build, read back by the audit: they say what the rig holds."""

import shlex
from pathlib import Path

import pytest

from harness.audit.command import from_command
from harness.audit.compare import audit
from harness.audit.rig import as_served, from_run
from harness.compose import compose_run
from harness.config import Arm, Run
from harness.engines.llama_cpp import LlamaCpp
from harness.engines.sglang import SGLang
from harness.engines.vllm import Vllm

DIALECTS = {"vllm": Vllm(), "sglang": SGLang(), "llama_cpp": LlamaCpp()}
RELEASES = {"vllm": "0.33.0", "sglang": "0.5.23", "llama_cpp": "b11434"}
METHODS = ("plain", "ngram", "mtp", "eagle3", "dflash", "dspark")


def rig(engine: str, *overrides: str) -> Run:
    return compose_run(str(Path(__file__).with_name("served.yaml")), [f"engine={engine}", *overrides]).run


def command(engine: str, run: Run, arm: Arm) -> str:
    dialect = DIALECTS[engine]
    words = [*dialect.command(run, "/models/Qwen3.8-27B"), *dialect.endpoint(8000, "x"), *dialect.speculation(run, arm)]
    env = {**run.engine.env, **dialect.env(run)}
    return shlex.join([*(f"{name}={value}" for name, value in env.items()), *words])


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("budget", [1, 4, 15])
@pytest.mark.parametrize("method", METHODS)
def test_method_and_budget_come_back(engine, budget, method):
    run = rig(engine, f"draft_budget={budget}")
    found = from_command(command(engine, run, run.arms[method]), RELEASES[engine])
    assert found.method == method
    assert found.value("draft_budget") == (None if method == "plain" else budget)
    assert found.unknown_tokens == ()


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize(
    "overrides", [(), ("engine.graphs=decode",), ("engine.prefix_cache=true",), ("engine.kv_tokens=131072",)]
)
def test_what_the_rig_holds_comes_back(engine, overrides):
    run = rig(engine, *overrides)
    found = from_command(command(engine, run, run.arms["ngram"]), RELEASES[engine])
    held = {
        **as_served(run),
        "max_running_requests": run.engine.max_running_requests,
        "prefill_chunk": run.engine.prefill_chunk,
    }
    if engine != "llama_cpp":
        held |= {"dtype": run.target.dtype, "prefix_cache": run.engine.prefix_cache, "kv_dtype": run.target.dtype}
    if run.engine.flags.get("kv-cache-memory-bytes") is None:
        held["kv_tokens"] = run.engine.kv_tokens
    assert {name: found.value(name) for name in held} == held


@pytest.mark.parametrize("engine", DIALECTS)
def test_plain_and_ngram_of_one_rig_are_controlled_as_commands(engine):
    run = rig(engine)
    plain, ngram = (from_command(command(engine, run, run.arms[name]), RELEASES[engine]) for name in ("plain", "ngram"))
    assert audit(plain, ngram).named("confounder") == (("draft_memory",) if engine == "sglang" else ())


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_rig_and_its_own_command_differ_in_nothing_but_what_a_command_cannot_say(engine):
    run = rig(engine)
    found = audit(from_run(run, "eagle3", "rig"), from_command(command(engine, run, run.arms["eagle3"]), RELEASES[engine]))
    assert found.named("confounder") == ()
    assert found.of("implied") == ()
