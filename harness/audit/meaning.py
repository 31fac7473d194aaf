"""From flags and environment to canonical factors, by the meaning table of an engine (`engines/<engine>.yaml`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

import yaml
from pydantic import Field

from harness.audit.account import Fact, Origin, Scalar
from harness.audit.flags import FOLDER, Given, Kind
from harness.config import Model

HIDDEN = "(hidden)"
# Names of variables that hold a secret end so; `..._TOKEN_THRESHOLD` holds a number.
SECRET_ENV = re.compile(
    r"(?:.*_)?(?:TOKEN|SECRET(?:_ACCESS)?(?:_KEY)?|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY(?:_ID)?)", re.IGNORECASE
)
HARMLESS_ENV = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "HF_HUB_ENABLE_HF_TRANSFER",
    "TRANSFORMERS_OFFLINE",
    "PATH",
    "HOME",
)
# Spellings of one precision. E4M3 is what plain `fp8` means on CUDA.
DTYPES = {
    "bf16": "bfloat16",
    "half": "float16",
    "f16": "float16",
    "fp16": "float16",
    "float": "float32",
    "f32": "float32",
    "fp8_e4m3": "fp8",
}
COUNT = re.compile(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)")
FACTORS_OF_1000 = "kmgt"


class Meaning(Model):
    """One flag, JSON key or variable: its factor and how its value is read. One that `wins` counts in any order."""

    factor: str
    how: Literal["text", "number", "tokens", "not", "dtype", "sizes", "upper", "lower", "count"] = "text"
    values: dict[str, Scalar] = Field({})
    wins: bool = False


class MeaningTable(Model):
    """The meaning of everything that an engine can be told, as far as it is known."""

    factors: dict[str, Meaning]
    json_keys: dict[str, Meaning]
    env: dict[str, Meaning]
    harmless: frozenset[str]
    harmful: dict[str, tuple[str, ...]] = Field({})
    secret: frozenset[str]
    harmless_env: frozenset[str]
    cumulative: frozenset[str] = frozenset()
    other_releases: dict[str, Kind] = Field({})

    def is_harmless(self, given: Given) -> bool:
        """Whether a flag with this value does not touch decoding. `harmful` are the values of a harmless flag that do."""
        return given.name in self.harmless and str(given.value).lower() not in self.harmful.get(given.name, ())


@cache
def meaning_table(engine: str) -> MeaningTable:
    """The table of one engine. Raises ValueError that names a broken entry."""
    data = yaml.safe_load((FOLDER / f"{engine}.yaml").read_text("utf-8"))
    data["json_keys"] = data.pop("json")
    for part in ("factors", "json_keys", "env"):
        data[part] = {name: {"how": entry.pop("as", "text"), **entry} for name, entry in data[part].items()}
    return MeaningTable.model_validate(data)


def read(meaning: Meaning, value: Any, token: str) -> Scalar:
    """A value in canonical form. Raises ValueError that names the token when it is not what the flag takes."""
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    if text in meaning.values:
        return meaning.values[text]
    if meaning.how == "sizes":
        return sizes(value, token)
    if isinstance(value, bool):
        return not value if meaning.how == "not" else value
    if not isinstance(value, str | int | float | tuple) or text.startswith("$"):
        return text if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return _read_text(meaning.how, text, token)


def _read_text(how: str, text: str, token: str) -> Scalar:
    match how:
        case "number":
            return number(text, token)
        case "tokens":
            return tokens(text, token)
        case "dtype":
            return DTYPES.get(text.lower(), text.lower())
        case "upper":
            return text.upper()
        case "lower":
            return text.lower()
        case "count":
            return len([part for part in text.split(",") if part.strip()])
        case "not":
            raise ValueError(f"{token}: takes no value, got '{text}'; remove it")
    return text


def number(text: str, token: str) -> int | float:
    """A whole number where it is one. Raises ValueError that names the token."""
    try:
        return int(text)
    except ValueError:
        try:
            found = float(text)
        except ValueError:
            raise ValueError(f"{token}: '{text}' is not a number") from None
    if found != found or abs(found) == float("inf"):
        raise ValueError(f"{token}: '{text}' is not a finite number")
    return int(found) if found.is_integer() and abs(found) < 2**53 else found


def tokens(text: str, token: str) -> Scalar:
    """A count that may end in k, m, g (thousands) or K, M, G (powers of 1024). `auto` stays. Raises ValueError."""
    if text in ("auto", "-1"):
        return None
    match = COUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{token}: '{text}' is not a count; write 8192, 8k or 8K")
    power = FACTORS_OF_1000.find(match[2].lower()) + 1 if match[2] else 0
    base = 1000 if match[2].islower() else 1024
    return number(match[1], token) if not power else int(float(match[1]) * base**power)


def sizes(value: Any, token: str) -> str:
    """A list of sizes, however written, as sorted JSON. Raises ValueError that names the token."""
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    parts = [part for part in re.split(r"[\s,\[\]]+", text) if part]
    return json.dumps(sorted({int(number(part, token)) for part in parts}))


def facts_of(engine: str, flags: Mapping[str, Given], origin: Origin = "stated") -> dict[str, Fact]:
    """Facts of flags that are not about speculation. One that has no meaning in the table is a fact of its own name."""
    table, found = meaning_table(engine), {}
    for name, given in flags.items():
        if table.is_harmless(given) or name in table.secret:
            continue
        meaning = table.factors.get(name, Meaning(factor=f"flag.{name}"))
        value = read(meaning, given.value, given.token)
        if value is not None or meaning.factor not in found:
            found[meaning.factor] = Fact(value, origin, given.token)
    return {**found, **(winning(engine, flags) if origin != "default" else {})}


def winning(engine: str, flags: Mapping[str, Given]) -> dict[str, Fact]:
    """Facts of flags that count whatever else is said of their factor: `--enforce-eager` beside a graph mode, in any order."""
    factors = meaning_table(engine).factors
    given = [(factors[name], one) for name, one in flags.items() if name in factors and factors[name].wins]
    values = [(meaning.factor, read(meaning, one.value, one.token), one.token) for meaning, one in given]
    return {factor: Fact(value, "stated", token) for factor, value, token in values if value is not None}


def json_facts(engine: str, name: str, data: Mapping[str, Any], token: str) -> dict[str, Fact]:
    """Facts of one JSON flag, key by key; a key without meaning is a fact of its own name."""
    found, table = {}, meaning_table(engine)
    for key, value in data.items():
        meaning = table.json_keys.get(f"{name}.{key}", Meaning(factor=f"flag.{name}.{key}"))
        found[meaning.factor] = Fact(read(meaning, value, f"{token} {key}"), "stated", f"{token} {key}")
    return found


def env_facts(engine: str, env: Mapping[str, str]) -> dict[str, Fact]:
    """Facts of environment variables; one without meaning is `env.<NAME>`. Harmless and secret ones are left out."""
    table, found = meaning_table(engine), {}
    for name, value in env.items():
        if name in (*HARMLESS_ENV, *table.harmless_env) or SECRET_ENV.fullmatch(name):
            continue
        meaning = table.env.get(name, Meaning(factor=f"env.{name}"))
        found[meaning.factor] = Fact(read(meaning, value, name), "stated", name)
    return found


def secret_names(env: Iterable[str]) -> list[str]:
    """Variables that are taken for secrets, and so compared by nobody."""
    return [name for name in env if SECRET_ENV.fullmatch(name)]


def harmless_of(engine: str, flags: Iterable[Given]) -> Iterator[tuple[str, str]]:
    """Flags that do not touch decoding, with what they say; secrets are not shown."""
    table = meaning_table(engine)
    for given in flags:
        if given.name in table.secret:
            yield given.name, HIDDEN
        elif table.is_harmless(given):
            yield given.name, " ".join(given.value) if isinstance(given.value, tuple) else str(given.value)
