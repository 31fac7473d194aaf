"""One launch in many spellings, by hypothesis: quotes, environment, JSON, aliases, repeats, unknown flags, other releases."""

import json
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.audit.command import from_command
from harness.audit.flags import STYLES, flag_table, split_flags
from harness.audit.meaning import meaning_table

PROGRAMS = {"vllm": "vllm serve M", "sglang": "python -m sglang.launch_server --model-path M", "llama_cpp": "llama-server -m M"}
ENGINES = st.sampled_from(sorted(PROGRAMS))
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("Cs", "Cc")), max_size=12)
RELEASES = st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 9)).map(lambda v: ".".join(map(str, v)))


def environment(text: str) -> dict[str, object]:
    return {name: fact.value for name, fact in from_command(text).facts.items() if name.startswith("env.SAMERIG_")}


@settings(max_examples=40, deadline=None)
@given(ENGINES, st.dictionaries(st.sampled_from(["A", "B2", "C_D"]), TEXT.filter(lambda t: t.strip() == t), min_size=1))
def test_an_environment_is_the_same_as_prefix_export_env_and_docker_option(engine: str, given_env: dict[str, str]) -> None:
    pairs = [f"SAMERIG_{name}={shlex.quote(value)}" for name, value in given_env.items()]
    program, words = PROGRAMS[engine], " ".join(pairs)
    wanted = {f"env.SAMERIG_{name}": value for name, value in given_env.items()}
    spellings = [
        f"{words} {program}",
        f"env {words} {program}",
        "\n".join([*(f"export {pair}" for pair in pairs), program]),
        f"export {words} && exec {program}",
        f"docker run {' '.join(f'-e {pair}' for pair in pairs)} image {program}",
    ]
    for text in spellings:
        found = environment(text)
        assert found.keys() == wanted.keys(), text
        assert {name: str(value) for name, value in found.items()} == wanted, text


CONFIGS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["eagle3", "mtp", "dflash", "ngram", "draft_model"]),
        "num_speculative_tokens": st.integers(1, 32),
    },
    optional={
        "model": st.sampled_from(["org/d", "/models/with space", "it's"]),
        "draft_tensor_parallel_size": st.integers(1, 8),
        "rejection_sample_method": st.sampled_from(["standard", "block"]),
        "prompt_lookup_max": st.integers(1, 9),
    },
)


@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.sampled_from([None, 1, 4]))
def test_a_json_flag_its_equals_form_and_dotted_keys_say_the_same(config: dict[str, object], indent: int | None) -> None:
    text = json.dumps(config, indent=indent)
    dotted = " ".join(f"--speculative-config.{key} {shlex.quote(str(value))}" for key, value in config.items())
    spellings = [
        f"--speculative-config {shlex.quote(text)}",
        f"--speculative-config={shlex.quote(text)}",
        f"--speculative_config {shlex.quote(text)}",
        f"-sc {shlex.quote(text)}",
        dotted,
    ]
    found = [{name: fact.value for name, fact in from_command(f"vllm serve M {one}").facts.items()} for one in spellings]
    assert found[0]["method"] == config["method"]
    assert found[0]["draft_budget"] == config["num_speculative_tokens"]
    assert all(one == found[0] for one in found[1:])


@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.data())
def test_cut_json_is_refused_with_its_flag_named(config: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(config)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    with pytest.raises(ValueError, match="--speculative-config"):
        from_command(f"vllm serve M --speculative-config {shlex.quote(cut)}")


@pytest.mark.parametrize(("engine", "alias"), [(e, alias) for e in sorted(STYLES) for alias in sorted(flag_table(e).aliases)])
def test_an_alias_is_its_flag(engine: str, alias: str) -> None:
    table, others = flag_table(engine), meaning_table(engine).other_releases
    name = table.aliases[alias]
    kind = {**others, **table.kinds()}.get(name)
    values = {"store": [], "switch": [], "two": ["1", "2"]}.get(str(kind), ["1"])
    (short,), _ = split_flags(engine, [alias, *values], others)
    (full,), _ = split_flags(engine, [f"--{name}", *values], others)
    assert (short.name, short.value, short.known) == (name, full.value, True)


REPEATED = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "llama_cpp": "--parallel"}


@settings(max_examples=40, deadline=None)
@given(ENGINES, st.lists(st.integers(1, 512), min_size=2, max_size=5))
def test_of_a_repeated_flag_the_last_counts_and_a_change_is_told(engine: str, values: list[int]) -> None:
    flag = REPEATED[engine]
    found = from_command(f"{PROGRAMS[engine]} " + " ".join(f"{flag} {value}" for value in values))
    assert found.value("max_running_requests") == values[-1]
    told = any(f"{flag.strip('-')}: given more than once" in note for note in found.notes)
    assert told == (len(set(values)) > 1)


@settings(max_examples=40, deadline=None)
@given(ENGINES, st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=10), st.sampled_from(["", " 3", " word"]))
def test_an_unknown_flag_is_named_and_never_dropped(engine: str, tail: str, value: str) -> None:
    flag = f"--zq-{tail}"
    found = from_command(f"{PROGRAMS[engine]} {flag}{value}")
    assert found.unknown_tokens == (flag,)
    assert f"flag.zq-{tail}" in found.facts
    assert any(note.startswith(f"{flag}: not a flag of {engine}") for note in found.notes)


@settings(max_examples=40, deadline=None)
@given(ENGINES, RELEASES, st.integers(1, 512))
def test_another_release_keeps_what_is_stated_and_fills_in_no_default(engine: str, release: str, value: int) -> None:
    table = flag_table(engine)
    text = f"{PROGRAMS[engine]} {REPEATED[engine]} {value}"
    here, there = from_command(text, table.version), from_command(text, release)
    assert here.value("max_running_requests") == there.value("max_running_requests") == value
    assert any(fact.where == f"default of {engine} {table.version}" for fact in here.facts.values())
    if release != table.version:
        assert not any(fact.where.startswith("default of") for fact in there.facts.values())
        assert any(f"no table of {engine} {release}" in note for note in there.notes)
