"""What to do about one factor that two accounts do not share, in words that fit the factor."""

from __future__ import annotations

from typing import Literal

from harness.audit.account import Fact
from harness.control.factors import remedy, table

Side = Literal["a", "b"]
BUDGET_REMEDY = "give both the same budget, or show each drafter at its best in a second table"
# What a command need not state to be a whole command: that one side does leaves open what the other has.
OPEN = {
    "engine_build": "one side states its release; the other may be any",
    "visible_gpus": "one side narrows the GPUs that its server sees; the other sees all of its machine, however many",
}
GPUS = "set CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES) on both sides"
CONTAINERS = ("docker", "podman", "nerdctl", "apptainer", "singularity")
PINNING = ("numactl", "taskset")


def advice(name: str, one: Fact, two: Fact) -> str:
    """What to do where both sides say something of a factor that is not the treatment."""
    if name == "draft_budget":
        return BUDGET_REMEDY
    if name == "wrapper":
        return _wrapper(one, two)
    if "supposed" in (one.origin, two.origin):
        return f"state the release (--version-a, --version-b), or pin {name} on both sides"
    if name == "visible_gpus":
        return "let both see equally many GPUs"
    return remedy(name) if name in table() else f"make {name} equal"


def one_sided(name: str, fact: Fact, silent: Side) -> str:
    """What to do where one command sets a factor and the other, on side `silent`, says nothing of it."""
    if name == "engine_build":
        return f"give --version-{silent}"
    if name == "visible_gpus":
        return GPUS
    if name == "wrapper":
        return _wrapper(fact)
    bare = name.removeprefix("flag.").removeprefix("env.")
    return f"set {bare} on both sides" + (
        ", or on neither" if name.startswith("env.") else ", or state the release whose default it is"
    )


def find_out(name: str, fact: Fact) -> str:
    """What to do where a source that is no command does not say what the other side says."""
    if name == "wrapper":
        return _wrapper(fact)
    told = {"engine_build": "the release (engine.version in a rig)", "visible_gpus": "the number of GPUs in use"}.get(
        name, name
    )
    return f"find out, or state {told} on both sides"


def _wrapper(*facts: Fact) -> str:
    """A wrapper is what stands before the program: it runs in a container, is bound to cores, or is something of the user's."""
    programs = {str(fact.value).partition(" ")[0].rpartition("/")[2] for fact in facts}
    if programs & {*CONTAINERS}:
        return "one server runs in a container, which brings libraries, limits and devices of its own: start both in the same"
    if programs & {*PINNING}:
        return "it binds the server to cores and memory: start both with the same binding"
    return "it is the words before the program: start both with the same, or without"
