"""What is asked: the typed form of a composed rig file.

Hydra composes, these models judge. A `Run` is a rig (everything held equal), its arms (everything allowed to differ), a
workload (what is asked) and a protocol (how often, in what order). Unknown keys are refused and every error names its key.
No field has a default that YAML could state, except where null is the only neutral value.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _not_a_truth(value: Any) -> Any:
    """YAML's true would pass for 1."""
    if isinstance(value, bool):
        raise ValueError(f"should be a whole number, got {str(value).lower()}")
    return value


def _folder_name(name: str) -> str:
    """Runs and servings are folders and files of this name."""
    if not re.fullmatch(r"\w[\w.+-]{0,79}", name):
        raise ValueError(f"'{name}' cannot name a folder; give 1 to 80 letters, digits, or . _ + - between them")
    return name


Positive = Annotated[int, BeforeValidator(_not_a_truth), Field(ge=1)]
Budget = Annotated[Positive, Field(le=1024)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_folder_name)]


def _dotted_path(path: str) -> str:
    """A dotted path is the only registry; it may name nothing outside this project."""
    if not path.startswith(("harness.", "drafters.")):
        raise ValueError(f"'{path}' must name something inside harness. or drafters.")
    return path


DottedPath = Annotated[str, AfterValidator(_dotted_path)]


class Model(BaseModel):
    """Frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Machine(Model):
    """The machine asked for. `threads` is for CPU targets: null means one per physical core.

    `memory_bytes` is what one GPU has, `reserved_bytes` what of it the plan leaves for driver, activations and graphs.
    """

    kind: Literal["cpu", "cuda", "tpu"]
    gpu: str | None = None
    gpu_count: int = Field(0, ge=0)
    memory_bytes: Positive | None = None
    reserved_bytes: int | None = Field(None, ge=0)
    threads: Annotated[Positive, Field(le=4096)] | None = None
    max_load: float | None = Field(
        None,
        ge=0,
        description="cores that others may keep busy: more are flagged before a launch, and confound in a window",
    )


class Engine(Model):
    """How requests are served, before any arm is known: no field here can differ between arms."""

    adapter: DottedPath
    version: str | None = None
    interpreter: str | None = None
    binary: str | None = None
    url: str | None = None
    flags: dict[str, str | int | float | bool | None] = {}
    env: dict[str, str] = {}
    max_running_requests: Positive
    kv_tokens: Positive
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8"]
    prefill_chunk: Positive
    prefix_cache: bool
    graphs: Literal["off", "decode"]
    graph_batch_sizes: tuple[Positive, ...] = ()
    verify_rule: Literal["standard", "block"]


class Size(Model):
    """What a checkpoint takes, as the rig states it; the checkpoint's own headers win where it is on this disk.

    `kv_bytes_per_token` is at 2 bytes per value. `state_bytes_per_request` is what recurrent layers keep for one request.
    """

    weights_bytes: Positive
    kv_bytes_per_token: int = Field(ge=0)
    state_bytes_per_request: int = Field(ge=0)


class Target(Model):
    """The model that is served. `source` says where the bytes come from; `revision` or `sha256` pins them. A GGUF that
    engine.flags.gguf names in their place is `fetched_from` a hub repository."""

    name: str
    fetched_from: str | None = None
    source: Literal["package", "hub", "folder"]
    location: Text
    file: str | None = None
    revision: str | None = None
    sha256: Sha256 | None = None
    implementation: DottedPath
    dtype: Literal["float32", "bfloat16"]
    quantization: str
    context: Positive
    size: Size | None = None

    @model_validator(mode="after")
    def _is_pinned(self) -> Target:
        if self.source == "hub" and not self.revision:
            raise ValueError("a hub target needs a pinned revision: set target.revision to a commit hash")
        if self.source == "package" and not self.sha256:
            raise ValueError("a packaged target needs target.sha256")
        return self


class Checkpoint(Model):
    """A drafter's weights: a folder or file here, which may be fetched from a hub repository, or one at a pinned revision."""

    location: Text
    fetched_from: str | None = None
    revision: str | None = None
    sha256: Sha256 | None = None
    size: Size | None = None


class Tuned(Model):
    """Where a draft budget comes from: the best of arm `of` at these concurrency levels, in the budget sweep `run`."""

    of: str
    at: tuple[Positive, ...]
    run: str


# Methods that serve no weights beside the target's.
WITHOUT_WEIGHTS = frozenset(("plain", "ngram"))


class Arm(Model):
    """The one variable: a drafter and its budget (drafts offered per verification, the anchor not counted).

    `drafter` null is plain decoding. `method` names the family for engines that bring their own drafters. The budget sweep sets
    `tuned`, never a rig. `engine_flags`, on one plain arm only, are laid over the rig's; see `harness.baselines`."""

    method: str
    drafter: DottedPath | None
    needs_checkpoint: bool
    checkpoint: Checkpoint | None = None
    draft_budget: Budget | None = None
    options: dict[str, str | int | float | bool | None] = {}
    label: Text
    tuned: Tuned | None = None
    engine_flags: dict[str, str | int | float | bool | None] | None = None

    @model_validator(mode="after")
    def _is_coherent(self) -> Arm:
        if self.method == "plain" and self.draft_budget is not None:
            raise ValueError("draft_budget: a plain arm drafts nothing; remove draft_budget")
        if self.method != "plain" and self.draft_budget is None:
            raise ValueError(f"draft_budget: arm method '{self.method}' needs a draft budget of at least 1")
        if self.needs_checkpoint and self.checkpoint is None:
            raise ValueError(f"checkpoint: arm method '{self.method}' needs drafter weights; set checkpoint.location")
        if self.method != "plain" and self.engine_flags is not None:
            raise ValueError("engine_flags: only a plain arm may have flags of its own; engine.flags holds for every arm")
        return self


class PromptSet(Model):
    """A pinned prompt set of `workloads/manifest.json` and how it is asked. `depth` is for sets with long contexts (tokens).

    `cached` is the state of the prefix cache when a window begins: the first so many tokens of every prompt are in it, and the
    engine's own count must confirm that. Null is cold: the cache is empty.
    """

    set: str
    max_tokens: Positive
    depth: Positive | None = None
    cached: Positive | None = None


class Workload(Model):
    """What is asked. `stop` natural ends at a stop token; fixed ignores it and is labelled so everywhere.

    `template_options` go to the model's chat template with every prompt (`enable_thinking: false`), the same for every arm.
    `skip_prompts` leaves the first prompts of every set to another run: the budget sweep asks none that is measured.
    """

    name: str
    sets: tuple[PromptSet, ...] = Field(min_length=1)
    stop: Literal["natural", "fixed"]
    system_prompt: str | None = None
    template_options: dict[str, str | int | float | bool | None] = {}
    seed: int = Field(ge=0)
    skip_prompts: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _asks_each_set_once(self) -> Workload:
        asked = [(one.set, one.depth, one.cached) for one in self.sets]
        if twice := sorted({name for name, depth, cached in asked if asked.count((name, depth, cached)) > 1}):
            raise ValueError(f"sets: '{twice[0]}' stands there twice; a prompt is asked once, give each set once")
        return self


class Sampler(Model):
    """Sampling, sent explicitly with every request. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    seed: int = Field(ge=0)


class Protocol(Model):
    """How often and in what order. A block boots every arm once, in an order rotated between blocks.

    A cell asks `max(prompts_per_set, waves * concurrency)` distinct prompts of one set. `load` closed keeps `concurrency`
    requests in flight; open sends at `rate_rps` requests per second whatever comes back. `max_tokens_cap` shortens every answer
    for a quick look; null leaves each prompt set's own limit. `Run.max_tokens` applies it, the same for every arm.

    `calibration_s` of fixed work are timed before every launch: whether the machine was as fast for one arm as for another.
    After the cells of a serving, untimed: `width_rounds` rounds of the width sweep, `replays_per_set` requests of every prompt
    set read again by teacher forcing, and answers checked: the numbers, or all, which runs functions that the model wrote.
    """

    name: str
    blocks: Annotated[Positive, Field(le=1000)]
    a_a: bool
    prompts_per_set: Positive
    waves: Positive
    max_tokens_cap: Positive | None = None
    warmup_prompts: int = Field(ge=0)
    warmup_batches: Annotated[int, Field(ge=2, description="batches after which a warm-up ends, settled or not")]
    settled_within: float = Field(gt=0, lt=1, description="share within which two batches in a row must agree in time per step")
    load: Literal["closed", "open"]
    rate_rps: float | None = Field(None, gt=0)
    request_timeout_s: float = Field(gt=0)
    sample_period_s: float = Field(ge=0.01)
    calibration_s: float | None = Field(None, gt=0, le=60)
    width_rounds: int = Field(0, ge=0)
    replays_per_set: int = Field(0, ge=0)
    check_answers: Literal["none", "numbers", "all"] = "none"

    @model_validator(mode="after")
    def _open_load_has_a_rate(self) -> Protocol:
        if (self.load == "open") != (self.rate_rps is not None):
            raise ValueError("rate_rps: set it for load=open, and only for load=open")
        return self


class Run(Model):
    """One comparison: all arms, plain included, take turns in every block, at every concurrency level. With `best_budget`
    drafters are also measured at their own best budget of `budget_candidates`, chosen on other prompts."""

    name: Name
    summary: str
    source: str | None = None
    machine: Machine
    engine: Engine
    target: Target
    draft_budget: Budget
    best_budget: bool = False
    budget_candidates: tuple[Budget, ...] = ()
    concurrency: tuple[Positive, ...] = Field(min_length=1)
    sampler: Sampler
    arms: dict[Name, Arm]
    workload: Workload
    protocol: Protocol
    published: dict[str, Any] | None = Field(None, description="what the source of the rig says; see harness.published")

    def max_tokens(self, prompt_set: PromptSet) -> int:
        """The output limit a request of this set is sent with: the set's own, shortened by the protocol's cap if it has one."""
        cap = self.protocol.max_tokens_cap
        return prompt_set.max_tokens if cap is None else min(cap, prompt_set.max_tokens)

    @model_validator(mode="after")
    def _is_a_comparison(self) -> Run:
        if not any(arm.method == "plain" and arm.engine_flags is None for arm in self.arms.values()):
            raise ValueError("arms: a run is a comparison and needs a plain arm, one without engine_flags")
        if self.best_budget and not self.budget_candidates:
            raise ValueError("budget_candidates: best_budget=true needs draft budgets to try, such as [1,2,3,5,7]")
        if len(set(self.budget_candidates)) < len(self.budget_candidates):
            raise ValueError("budget_candidates: a budget stands there twice; give each once")
        if len(set(self.concurrency)) < len(self.concurrency):
            raise ValueError("concurrency: a level stands there twice; a cell is measured once, give each level once")
        cap = self.engine.max_running_requests
        if max(self.concurrency) > cap:
            raise ValueError(
                f"concurrency: {max(self.concurrency)} exceeds engine.max_running_requests {cap}; raise the cap for every arm"
            )
        return self
