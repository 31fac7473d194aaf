"""What a command says of speculation: family of the drafter, budget and rules, per engine.

The budget is translated once: drafts offered per verification, the anchor not counted. vLLM's K and llama.cpp's n-max are that;
SGLang counts the anchor (`num_draft_tokens` - 1), except DSpark's `block_size`, which does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.audit.account import Fact, Scalar
from harness.audit.flags import Given, parsed_json
from harness.audit.meaning import json_facts, number
from harness.claims.arithmetic import Budget

Facts = dict[str, Fact]
SERIAL = ("eagle", "eagle3", "mtp", "draft_model")


def vllm(flags: Mapping[str, Given], nested: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> Facts:
    """`--speculative-config` JSON, its dotted keys, and the three short flags. Raises ValueError that names the token."""
    token = "--speculative-config"
    config: dict[str, Any] = {}
    if (given := flags.get("speculative-config")) and isinstance(given.value, str):
        token, config = given.token, parsed_json(given.value, given.token)
    config = {**config, **nested.get("speculative-config", {})}
    for short, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        if short in flags:
            config[key] = flags[short].value
    for old, key in (("speculative-model", "model"), ("num-speculative-tokens", "num_speculative_tokens")):
        if old in flags:
            config[key] = flags[old].value
    return _vllm_config(config, token) if config else {}


def _vllm_config(config: dict[str, Any], token: str) -> Facts:
    facts = {"method": _vllm_method(config, token)}
    if (budget := config.pop("num_speculative_tokens", None)) is not None:
        facts["draft_budget"] = Fact(_count(budget, f"{token} num_speculative_tokens"), "stated", token)
    else:
        facts["draft_budget"] = Fact(None, "default", "the drafter's checkpoint decides")
    if (model := config.pop("model", None)) is not None:
        facts["draft_checkpoint_hash"] = Fact(str(model), "stated", token)
    rule = str(config.pop("rejection_sample_method", "standard"))
    facts["verify_rule"] = Fact(rule, "stated", token)
    if rule == "synthetic" or any(key.startswith("synthetic_acceptance") for key in config):
        facts["synthetic_acceptance"] = Fact(_synthetic(config), "stated", token)
    schedule = config.pop("num_speculative_tokens_per_batch_size", None)
    if config.pop("enable_adaptive_verification", False) or schedule:
        facts["adaptive_budget"] = Fact(True, "stated", token)
    for key in [key for key in config if key.startswith(("prompt_lookup", "dspark_", "suffix_"))]:
        facts[f"draft_options.{key}"] = Fact(_scalar(config.pop(key)), "stated", token)
    return {**json_facts("vllm", "speculative-config", config, token), **facts}


# What vLLM takes a drafter's name for when no method, or only draft_model, is stated, in its order (config/speculative.py).
VLLM_NAMES = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
NAMED = "vLLM tells the method by the drafter's name; state it"


def _vllm_method(config: dict[str, Any], token: str) -> Fact:
    """The family as vLLM resolves it; a model without a method is what its name says, or a draft model."""
    method, model = str(config.pop("method", None) or "draft_model"), str(config.get("model", "")).lower()
    if method == "draft_model" and model in ("ngram", "[ngram]"):
        return Fact("ngram", "stated", token)
    if method == "draft_model" and (named := next((family for part, family in VLLM_NAMES.items() if part in model), None)):
        return Fact(named, "implied", NAMED)
    return Fact("mtp" if method.endswith("mtp") else "ngram" if method == "ngram_gpu" else method, "stated", token)


def _count(value: object, token: str, least: int = 1) -> int:
    """A whole number of tokens or steps. Raises ValueError that names the token."""
    found = number(str(value), token)
    if not isinstance(found, int) or found < least:
        raise ValueError(f"{token}: {value} is no count; give a whole number, {least} or more")
    return found


def _synthetic(config: dict[str, Any]) -> Scalar:
    found = {key: config.pop(key) for key in list(config) if key.startswith("synthetic_acceptance")}
    return _scalar(next(iter(found.values()), "synthetic"))


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


SGLANG_METHODS = {
    "EAGLE3": "eagle3",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
    "DSPARK": "dspark",
    "NEXTN": "mtp",
    "FROZEN_KV_MTP": "mtp",
}


def sglang(flags: Mapping[str, Given], nested: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> Facts:
    """`--speculative-*`. Raises ValueError that names the token."""
    if (given := flags.get("speculative-algorithm")) is None or str(given.value).upper() == "NONE":
        return {}
    algorithm, token = str(given.value).upper(), given.token
    checkpoint = flags.get("speculative-draft-model-path")
    method = _sglang_method(algorithm, flags)
    facts = {"method": Fact(method, "stated", token), **_sglang_budget(algorithm, flags), "accept_threshold": _threshold(flags)}
    if checkpoint:
        facts["draft_checkpoint_hash"] = Fact(str(checkpoint.value), "stated", checkpoint.token)
    facts["verify_rule"] = _sglang_rule(method, algorithm, flags)
    if method == "ngram":
        facts["draft_memory"] = Fact("serving", "implied", "SGLang's n-gram corpus lasts across requests until it is flushed")
    return facts


def _sglang_method(algorithm: str, flags: Mapping[str, Given]) -> str:
    """The family of the drafter. EAGLE without weights of its own is the target's MTP, as its other name NEXTN says."""
    if algorithm != "EAGLE":
        return SGLANG_METHODS.get(algorithm, algorithm.lower())
    return "eagle" if "speculative-draft-model-path" in flags else "mtp"


def _sglang_rule(method: str, algorithm: str, flags: Mapping[str, Given]) -> Fact:
    """The rule that accepts drafts: serial drafters are verified against the target alone, unless a flag says otherwise."""
    block, sampled = (flags.get(f"speculative-use-{name}") for name in ("block-verification", "rejection-sampling"))
    if block and block.value:
        return Fact("block", "stated", block.token)
    if sampled and sampled.value:
        return Fact("standard", "stated", sampled.token)
    if method in SERIAL:
        unless = "unless --speculative-use-rejection-sampling is given"
        return Fact("target_only", "implied", f"SGLang verifies serial drafters against the target alone, {unless}")
    return Fact("standard", "implied", f"SGLang verifies {algorithm} so, unless --speculative-use-block-verification is given")


def _threshold(flags: Mapping[str, Given]) -> Fact:
    """The lower of the two thresholds: below 1, either one takes drafts that the target would not."""
    given = [one for name in ("single", "acc") if (one := flags.get(f"speculative-accept-threshold-{name}"))]
    values = [(number(str(one.value), one.token), one.token) for one in given]
    if not values:
        return Fact(1, "default", "default of SGLang")
    value, token = min(values)
    return Fact(value, "stated", token)


SGLANG_NGRAM_TOKENS, SGLANG_NGRAM_BREADTH = 12, 10  # its defaults
LESS_ANCHOR = "--speculative-num-draft-tokens less the anchor"
LEFT_TO_CHECKPOINT = "the drafter's checkpoint decides"
LEFT_TO_ENGINE = "the engine takes 3, or 7 for Llama targets, when nothing is set"


def _sglang_budget(algorithm: str, flags: Mapping[str, Given]) -> Facts:
    """Drafts per verification by the algorithm's own flags, with depth and width where drafting is serial or a tree."""

    def of(name: str) -> int | None:
        given = flags.get(f"speculative-{name}")
        return None if given is None else _count(given.value, given.token)

    tokens, steps, width = of("num-draft-tokens"), of("num-steps"), of("eagle-topk")
    if algorithm == "DSPARK" and (block := of("dspark-block-size")):
        return _budget(block, "--speculative-dspark-block-size", LEFT_TO_CHECKPOINT)
    if algorithm in ("DFLASH", "DSPARK"):
        block = tokens or of("dflash-block-size")
        return _budget(block - 1 if block else None, LESS_ANCHOR, LEFT_TO_CHECKPOINT)
    if algorithm == "NGRAM":
        breadth = of("ngram-max-bfs-breadth") or SGLANG_NGRAM_BREADTH
        found = _budget((tokens or SGLANG_NGRAM_TOKENS) - 1, LESS_ANCHOR, "")
        return {**found, "draft_tree_width": Fact(breadth, "stated", "--speculative-ngram-max-bfs-breadth")}
    drafts = steps if width == 1 and steps else tokens - 1 if tokens else None
    found = _budget(drafts, LESS_ANCHOR if tokens else "--speculative-num-steps", LEFT_TO_ENGINE)
    if steps is not None:
        found["draft_depth"] = Fact(steps, "stated", "--speculative-num-steps")
    if width is not None:
        found["draft_tree_width"] = Fact(width, "stated", "--speculative-eagle-topk")
    return found


def printed_budget(budget: Fact) -> Budget | None:
    """The number that the command prints for a budget; null where nothing states one."""
    counts_anchor = budget.where == LESS_ANCHOR
    return Budget(budget.value + counts_anchor, counts_anchor) if isinstance(budget.value, int) else None


def _budget(drafts: int | None, token: str, unset: str) -> Facts:
    return {"draft_budget": Fact(None, "default", unset) if drafts is None else Fact(drafts, "stated", token)}


LLAMA_METHODS = {
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
LLAMA_DEFAULT = "ngram-mod"  # what --spec-default chooses
LLAMA_BUDGET = ("spec-draft-n-max", 3)
LLAMA_BUDGETS = {"ngram-mod": ("spec-ngram-mod-n-max", 64), "ngram-simple": ("spec-ngram-simple-size-m", 48)}


def llama_cpp(flags: Mapping[str, Given], nested: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> Facts:
    """`--spec-type` and its budget; `--spec-default` is n-gram by hash. Raises ValueError that names the token."""
    given = flags.get("spec-type") or flags.get("spec-default")
    types = _llama_types(flags)
    drafter = flags.get("spec-draft-model") or flags.get("spec-draft-hf")
    if not types and not (drafter and given is None):
        return {}
    if given is None:
        why = "chosen from the drafter's file; state --spec-type"
        return {"method": Fact("auto", "implied", why), **_llama_budget(flags, "")}
    method = "+".join("ngram" if kind.startswith("ngram") else LLAMA_METHODS.get(kind, kind) for kind in types)
    facts = {"method": Fact(method, "stated", given.token), **_llama_budget(flags, types[0])}
    if kinds := [kind for kind in types if kind.startswith("ngram")]:
        facts["draft_options.kind"] = Fact("+".join(kinds), "stated", given.token)
    first, *rest = (LLAMA_BUDGETS.get(kind, LLAMA_BUDGET)[0] for kind in types)
    others = [flags[name] for name in rest if name in flags and name != first]
    return facts | {f"draft_options.{one.name}": Fact(_count(one.value, one.token, 0), "stated", one.token) for one in others}


def _llama_types(flags: Mapping[str, Given]) -> list[str]:
    """The types that are asked for, sorted: their order is no choice. The budget is that of the first."""
    given, default = flags.get("spec-type"), flags.get("spec-default")
    types = str(given.value).replace(",", " ").split() if given else []
    return sorted({*types, *([LLAMA_DEFAULT] if default and default.value else [])} - {"none"})


def _llama_budget(flags: Mapping[str, Given], kind: str) -> Facts:
    name, default = LLAMA_BUDGETS.get(kind, LLAMA_BUDGET)
    removed = flags.get("draft")
    given = flags.get(name) or removed
    if given is None:
        return {"draft_budget": Fact(default, "default", f"--{name} of b11434")}
    return {"draft_budget": Fact(_count(given.value, given.token, least=0), "stated", given.token)}
