"""Names in a command that the release which was read does not know: flags, drafting methods, keys of `--speculative-config`.

They are kept as they are spelt, and told with the name that was probably meant: another release may know them, a typing error
would be refused by the engine, or silently do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.audit.flags import FlagTable, Given, merged, parsed_json
from harness.config_errors import near

# Where each engine is told its method. llama.cpp takes several, separated by commas.
METHOD_FLAGS = {
    "vllm": ("spec-method",),
    "sglang": ("speculative-algorithm",),
    "llama_cpp": ("spec-type",),
}
SPECULATION = "speculative-config"


def unknown_names(table: FlagTable, flags: Mapping[str, Given]) -> dict[str, str]:
    """What to say of every name that is not in the table, by the token as the command spells it."""
    release = f"{table.engine} {table.version}"
    found = {one.token: f"not a flag of {release}{_near(one.name, table.kinds())}" for one in flags.values() if not one.known}
    for token, method in _methods(table, flags):
        told = method.upper() if table.engine == "sglang" else method  # SGLang takes a method in any case
        if told not in table.methods and not method.startswith("$"):
            found[f"{token} {method}"] = f"not a method of {release}{_near(told, table.methods)}"
    for token, key, _ in _config(flags):
        if table.speculation_keys and key not in table.speculation_keys:
            found[f"{token} {key}"] = f"not a key of it in {release}{_near(key, table.speculation_keys)}"
    return found


def _methods(table: FlagTable, flags: Mapping[str, Given]) -> Iterator[tuple[str, str]]:
    for name in METHOD_FLAGS[table.engine]:
        if (given := flags.get(name)) and isinstance(given.value, str):
            words = given.value.split(",") if table.engine == "llama_cpp" else [given.value]
            yield from ((given.token, word.strip()) for word in words if word.strip())
    yield from (
        (f"{token} method", value) for token, key, value in _config(flags) if key == "method" and isinstance(value, str)
    )


def _config(flags: Mapping[str, Given]) -> Iterator[tuple[str, str, object]]:
    """Token, key and value of what `--speculative-config` says, as JSON or as dotted flags. Raises ValueError for no JSON."""
    if (given := flags.get(SPECULATION)) and isinstance(given.value, str):
        yield from ((given.token, key, value) for key, value in parsed_json(given.value, given.token).items())
    dotted = {name: one for name, one in flags.items() if name.startswith(f"{SPECULATION}.")}
    for key, value in merged(dotted).get(SPECULATION, {}).items():
        yield f"--{SPECULATION}", key, value


def _near(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing where no name is near."""
    hint = near(name, known)
    return "" if hint.startswith("known:") else f"; {hint}"
