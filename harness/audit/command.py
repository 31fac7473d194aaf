"""The account of a launch command: parse, translate, and fill in what the stated release decides by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.audit import moves, speculation
from harness.audit.account import Account, Fact
from harness.audit.flags import FlagTable, Given, flag_table, hint, lasting, merged, parsed_json, split_flags
from harness.audit.launch import Launch, launch_of
from harness.audit.meaning import env_facts, facts_of, harmless_of, json_facts, meaning_table, secret_names, winning
from harness.audit.releases import is_same, stated
from harness.audit.spelling import METHOD_FLAGS, unknown_names
from harness.control.factors import is_draft

JSON_FLAGS = ("compilation-config", "attention-config", "kernel-config")
SPECULATION = {
    "vllm": re.compile(r"speculative-config|spec-(method|model|tokens)|speculative-model|num-speculative-tokens"),
    "sglang": re.compile(
        r"speculative-(algorithm|num-steps|eagle-topk|num-draft-tokens|(dflash|dspark)-block-size|draft-model-path"
        r"|use-rejection-sampling|use-block-verification|ngram-max-bfs-breadth|accept-threshold-(single|acc))"
    ),
    "llama_cpp": re.compile(r"spec-type|spec-default|spec-draft-n-max|spec-ngram-mod-n-max|spec-ngram-simple-size-m|draft"),
}


def from_command(text: str, version: str | None = None, name: str | None = None) -> Account:
    """The account of one launch command. Raises ValueError that names the token it cannot place."""
    launch = launch_of(text)
    release = stated(version) or (launch.version or "").lstrip("v") or None
    table = flag_table(launch.engine)
    given, positional = split_flags(launch.engine, launch.words, meaning_table(launch.engine).other_releases)
    given = [*_positional(launch, positional), *_from_env(table, launch.env, given), *given]
    flags, repeated = lasting(_accumulated(given, meaning_table(launch.engine).cumulative))
    facts, unknown = _facts(launch, flags), unknown_names(table, flags)
    is_read = release is not None and is_same(release, table.version)
    if is_read:
        facts = {**_defaults(table, flags, facts), **facts}
    facts |= derived(launch.engine, facts)
    if "kv_tokens" in facts:
        facts.pop("kv_blocks", None)
    facts.setdefault("method", Fact("plain", "stated", "no speculation asked for"))
    method = str(facts["method"].value)
    facts = {**facts, **moves.moved(launch.engine, facts, method, "implied" if is_read else "supposed")}
    idle = _idle(launch.engine, flags, facts, unknown) if method == "plain" else {}
    facts = {factor: fact for factor, fact in facts.items() if factor not in idle}
    notes = [f"{one}: given more than once; the last one counts" for one in repeated]
    notes += [f"{token}: does nothing without a drafting method" for token in dict.fromkeys(idle.values()) if token]
    notes += [*_about_release(launch, release, table), *_contradicted(launch, release)]
    if launch.has_conditions:
        notes.append("the text has conditions or loops: they are not evaluated, and every assignment in it was taken")
    notes += [f"{one}: taken for a secret, neither shown nor compared" for one in secret_names(launch.env)]
    notes += [f"{token}: {what}" for token, what in unknown.items()]
    return Account(
        name=name or _shown(launch),
        source="command",
        facts={**facts, **_build(launch, release)},
        notes=tuple(notes),
        unknown_tokens=tuple(unknown),
        strange={f"flag.{one.name}": unknown[one.token] for one in flags.values() if one.token in unknown},
        unread_release=f"{launch.engine} {release}" if release and not is_read else None,
        harmless=dict(harmless_of(launch.engine, flags.values())),
    )


def _idle(engine: str, flags: Mapping[str, Given], facts: Mapping[str, Fact], unknown: Mapping[str, str]) -> dict[str, str]:
    """What a command without a drafter says of one: factors that go, or flags, with the token to tell; "" where nobody set it.

    What the release does not know stays: whether the engine ignores it is not known.
    """
    drafts = {name: fact for name, fact in facts.items() if is_draft(name) and name != "method" and fact.where not in unknown}
    told = {name: fact.where if fact.origin == "stated" else "" for name, fact in drafts.items()}
    unused = {name for name in flags if SPECULATION[engine].fullmatch(name)} - {*METHOD_FLAGS[engine]}
    return {**told, **{f"--{name}": flags[name].token for name in unused}}


def derived(engine: str, facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Factors that follow from others: an automatic KV precision, tokens from blocks, a slot's share of the context."""

    def whole(name: str) -> int:
        value = facts[name].value if name in facts else None
        return value if isinstance(value, int) else 0

    found: dict[str, Fact] = {}
    if "kv_dtype" in facts and facts["kv_dtype"].value == "auto":
        dtype = facts.get("dtype")
        value = None if dtype is None or dtype.value == "auto" else dtype.value
        found["kv_dtype"] = Fact(value, facts["kv_dtype"].origin, "auto: the target's")
    if engine == "vllm" and whole("kv_blocks") and whole("kv_block_size"):
        found["kv_tokens"] = Fact(whole("kv_blocks") * whole("kv_block_size"), "stated", "blocks times their size")
    if engine == "llama_cpp" and whole("kv_tokens") and whole("max_running_requests") > 0 and "context_limit" not in facts:
        shared = "flag.kv-unified" in facts and facts["flag.kv-unified"].value is True
        slot = whole("kv_tokens") // (1 if shared else whole("max_running_requests"))
        found["context_limit"] = Fact(slot, "stated", "--ctx-size over --parallel")
    return found


def _positional(launch: Launch, words: Sequence[str]) -> list[Given]:
    if not words:
        return []
    if launch.engine != "vllm" or len(words) > 1:
        stray = words[-1] if launch.engine == "vllm" else words[0]
        raise ValueError(f"'{stray}' belongs to no flag; {hint(stray)}")
    return [Given("model", words[0], words[0])]


def _from_env(table: FlagTable, env: Mapping[str, str], given: Sequence[Given]) -> list[Given]:
    """Flags that variables set (llama.cpp); a flag on the command line wins, so these come first."""
    kinds, found = table.kinds(), []
    for variable, flag in table.env.items():
        if variable in env:
            on = env[variable].lower() in ("1", "true", "on", "enabled", "yes")
            found.append(Given(flag, on if kinds[flag] in ("store", "switch") else env[variable], variable))
    off = [Given(flag, False, variable) for variable, flag in table.off_env().items() if variable in env]
    found = [*(one for one in found if one.name not in {one.name for one in off}), *off]
    named = {one.name for one in given}
    return [one for one in found if one.name not in named]


def _accumulated(given: Sequence[Given], cumulative: frozenset[str]) -> list[Given]:
    """Flags that add up, such as `--spec-type a --spec-type b`, as one."""
    found: list[Given] = []
    for one in given:
        before = next((other for other in found if other.name == one.name), None)
        if one.name in cumulative and before:
            found.remove(before)
            one = Given(one.name, f"{before.value},{one.value}", one.token)
        found.append(one)
    return found


def _facts(launch: Launch, flags: Mapping[str, Given]) -> dict[str, Fact]:
    engine = launch.engine
    dotted = {name: one for name, one in flags.items() if "." in name and one.known_head(flag_table(engine).kinds())}
    nested = merged(dotted)
    plain = {name: one for name, one in flags.items() if name not in dotted and not SPECULATION[engine].fullmatch(name)}
    facts = facts_of(engine, {name: one for name, one in plain.items() if name not in JSON_FLAGS})
    for name in JSON_FLAGS:
        facts.update(_json(engine, name, plain.get(name), nested.get(name, {})))
    facts.update(winning(engine, plain))
    for name in nested.keys() - {*JSON_FLAGS, "speculative-config"}:
        facts.update(json_facts(engine, name, nested[name], f"--{name}"))
    skipped = {*flag_table(engine).env, *flag_table(engine).off_env()}
    facts.update(env_facts(engine, {name: value for name, value in launch.env.items() if name not in skipped}))
    facts.update(getattr(speculation, engine)(flags, nested, launch.env))
    return facts


def _json(engine: str, name: str, given: Given | None, nested: Mapping[str, Any]) -> dict[str, Fact]:
    data: dict[str, Any] = {}
    if given is not None and isinstance(given.value, str):
        data = {"mode": int(given.value)} if given.value.isdigit() else parsed_json(given.value, given.token)
    return json_facts(engine, name, {**data, **nested}, given.token if given else f"--{name}")


def _defaults(table: FlagTable, flags: Mapping[str, Given], stated: Mapping[str, Fact]) -> dict[str, Fact]:
    """What the release states for flags that were not given; null for a factor that it decides from model or device."""
    engine, where = table.engine, f"default of {table.engine} {table.version}"
    names = [name for name in table.kinds() if not SPECULATION[engine].fullmatch(name)]
    absent = {
        name: Given(name, _text(table.defaults[name]), where) for name in names if name in table.defaults and name not in flags
    }
    found = facts_of(engine, absent, "default")
    for meaning in meaning_table(engine).factors.values():
        found.setdefault(meaning.factor, Fact(None, "default", where))
    return {factor: fact for factor, fact in found.items() if factor not in stated}


def _text(value: Any) -> str | tuple[str, ...] | bool:
    if isinstance(value, bool):
        return value
    return tuple(str(part) for part in value) if isinstance(value, list) else str(value)


def _build(launch: Launch, release: str | None) -> dict[str, Fact]:
    facts = {"engine": Fact(launch.engine, "stated", "program")}
    if release:
        facts["engine_build"] = Fact(release, "stated", "release")
    if launch.wrapper:
        facts["wrapper"] = Fact(launch.wrapper, "stated", "before the program")
    return facts


def _about_release(launch: Launch, release: str | None, table: FlagTable) -> list[str]:
    if release is None:
        return [
            f"no release stated: no default is filled in, and what {launch.engine} moves by itself is read from {table.version}"
        ]
    if not is_same(release, table.version):
        return [f"no table of {launch.engine} {release}: flags are read as those of {table.version}, no default is filled in"]
    return []


def _contradicted(launch: Launch, release: str | None) -> list[str]:
    """A release given beside the command that is not the one in its text, such as an image's tag."""
    if release is None or launch.version is None or is_same(release, launch.version.lstrip("v")):
        return []
    return [f"the text itself says {launch.engine} {launch.version}, and {release} was given: one is wrong; read as {release}"]


def _shown(launch: Launch) -> str:
    text = " ".join((launch.engine, *launch.words))
    return text if len(text) <= 60 else text[:57] + "..."
