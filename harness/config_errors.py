"""One line per mistake: turns what Hydra, OmegaConf, YAML and pydantic say into `key: what is wrong; what to do`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from harness.config import Model, Run

# What pydantic calls by the names of Python's types.
SHAPES = {
    "too_short": "should have at least 1 entry",
    "tuple_type": "should be a list, such as [1,8]",
    "int_from_float": "should be a whole number",
    "model_type": "should be a mapping of keys",
}


class ConfigError(ValueError):
    """A mistake in a rig file or on the command line. Its text is one line that names the key and the fix."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


def near(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` with up to three near matches, else the list of what is known (of long lists, the outermost keys)."""
    choices = sorted(set(known))
    matches = difflib.get_close_matches(word, choices, n=3, cutoff=0.6)
    if matches:
        return "did you mean " + " or ".join(f"'{match}'" for match in matches) + "?"
    outermost = [choice for choice in choices if "." not in choice and "@" not in choice] if len(choices) > 20 else choices
    return "known: " + ", ".join(outermost) if outermost else "nothing is known here"


def flat_keys(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of a nested mapping, inner nodes included."""
    keys: list[str] = []
    for key, value in config.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += flat_keys(value, f"{prefix}{key}.")
    return keys


def from_yaml(error: yaml.YAMLError) -> ConfigError:
    """`file:line: problem`."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"{_short(mark.name)}:{mark.line + 1}" if mark else "rig file"
    return ConfigError(f"{where}: not valid YAML: {problem}; check indentation, quotes and colons around that line")


def _short(name: str) -> str:
    """A path below the current directory relative to it, any other name as it is."""
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else name


def from_pydantic(
    error: ValidationError, data: Mapping[str, Any], is_derived: Callable[[Sequence[int | str]], bool] = lambda path: False
) -> ConfigError:
    """The most telling error first: an unknown key explains the missing one beside it.

    `is_derived` tells keys that take their value from another one: nobody set those, and they are not named beside it.
    """
    found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    found = [one for one in found if not is_derived(one["loc"])] or found
    lines = list(dict.fromkeys(_judge(dict(one), data) for one in found))
    first = lines[0].split(": ")[0]
    others = dict.fromkeys(key for line in lines[1:] if not first.startswith(key := line.split(": ")[0]))
    return ConfigError(lines[0] + (f" (also wrong: {', '.join(others)})" if others else ""))


def _judge(error: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    path = _path(error["loc"], data)
    key = _shown(path)
    if path == ["arm"]:
        return str(_no_arm(key, []))
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key; {near(path[-1], _fields(path[:-1]))}"
    if error["type"] == "missing":
        return f"{key}: missing; state it in the rig file"
    message = re.sub(r"^(Value error|Assertion failed), ", "", error["msg"])
    if error["type"] == "value_error":
        return _join(path, message)
    message = SHAPES.get(error["type"], message)
    if len(path) == 2 and path[0] == "arms" and isinstance(error["input"], str):
        return f"{key}: {message}; an option of rigs/arm goes in with +arm@{key}={error['input']}"
    hint = "; YAML reads a bare on, off, yes or no as true or false: quote it" if isinstance(error["input"], bool) else ""
    return f"{key}: {message[0].lower()}{message[1:]}, got {error['input']!r}{hint}"


def _path(loc: Sequence[int | str], data: Any) -> list[str]:
    """The part of a pydantic location that is a key of the data: names of union members are dropped."""
    path: list[str] = []
    for step in loc:
        if isinstance(data, Mapping):
            path.append(str(step))
            data = data.get(step)
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(step, int):
            path.append(str(step))
            data = data[step]
        else:
            break
    return path


def _join(path: Sequence[str], message: str) -> str:
    """A message of a model that already names one of its fields continues the path; any other follows it."""
    field = message.split(":")[0]
    if re.fullmatch(r"\w+", field) and field in _fields(path):
        return ".".join([*path, message])
    return ": ".join(filter(None, [_shown(path), message]))


def _shown(path: Sequence[str]) -> str:
    """A path as an override has it; of a plain entry of a list, which no override can name, its place counted from 1."""
    *before, last = path or [""]
    return f"{'.'.join(before)}, item {int(last) + 1}" if before and _is_index(last) else ".".join(path)


def _fields(path: Sequence[str]) -> list[str]:
    """Field names of the model at a path of `Run`; empty where the path leaves the models."""
    model: type[BaseModel] | None = Run
    for step in path:
        if model is None:
            return []
        field = model.model_fields.get(step)
        model = _model_in(field.annotation) if field else (model if _is_index(step) else _named_entry(model, step))
    return list(model.model_fields) if model else []


def _is_index(step: str) -> bool:
    return step.isdigit()


def _named_entry(model: type[BaseModel], step: str) -> type[BaseModel] | None:
    """`arms.ngram`: the name of an arm is no field, what it holds is the model already reached."""
    return model if model.__name__ == "Arm" and step else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first project model inside an annotation such as `dict[str, Arm]` or `Checkpoint | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def from_hydra(error: Exception, rig: str, keys: Sequence[str], groups: Sequence[str], rigs: Sequence[str] = ()) -> ConfigError:
    """Hydra's paragraph as one line. `keys`, `groups`, `rigs` are what could have been meant. Falls back to its first line.

    Without `keys` there was nothing on the command line, so that the mistake is in the rig file.
    """
    message = str(error)
    full_key = re.search(r"full_key: (\S+)", f"{message}\n{error.__cause__}")
    if found := re.search(r"Could not find '([^']+)/([^'/]+)'", message):
        return _unknown_option(found[1], found[2], re.findall(r"^\t(\w\S*)$", message, re.M), groups)
    if found := re.search(r"Could not override '([^']+)'", message):
        where = "on the command line" if keys else f"in the defaults of {rig}"
        return _unknown_key(full_key[1] if full_key else found[1], [*keys, *groups], where)
    already = r"An item is already at '([^']+)'|(\S+) appears more than once in the final defaults list"
    if found := re.search(already, message):
        return ConfigError(f"{found[1] or found[2]}: exists already; remove the + before it")
    if found := re.search(r"In '([^']+)': Could not load '([^']+)'", message):
        return ConfigError(f"defaults of {found[1]}: there is no '{found[2]}'; {near(found[2], rigs)}")
    if "raised while composing config" in message:
        where = "a key has another shape than in the rig below it (a list or a value where that has a mapping of keys)"
        return ConfigError(f"rig {rig}: {message.splitlines()[-1]}; {where}")
    if found := re.search(r"Could not delete[^']*'([^'=]+)", message):
        return ConfigError(f"{found[1]}: cannot be removed, it is not there; {near(found[1], [*keys, *groups])}")
    if full_key and "Missing mandatory value" in message:
        return ConfigError(f"{full_key[1]}: missing; state it in the rig file or on the command line")
    if full_key:
        return ConfigError(f"{full_key[1]}: {message.splitlines()[0]}; name a key that exists, or give it a value")
    return ConfigError(f"rig {rig}: {message.splitlines()[0]}")


def _unknown_option(group: str, option: str, options: Sequence[str], groups: Sequence[str]) -> ConfigError:
    if group.startswith("hydra/"):
        return ConfigError(
            f"{group}: no option '{option}' (known: {', '.join(options)}); install the Hydra plugin that brings it"
        )
    if not options:
        return ConfigError(f"{group}: no such config group; {near(group, groups)}")
    hint = near(option, options)
    rest = "" if hint.startswith("known") else f" known: {', '.join(options)}"
    return ConfigError(f"{group}: no option '{option}'; {hint}{rest}")


def _unknown_key(key: str, known: Sequence[str], where: str) -> ConfigError:
    """Near matches among the keys beside it, or among all when nothing is known there."""
    if re.fullmatch(r"arm(@[\w.]+)?|arms\.\w+", key):
        return _no_arm(key, [other.removeprefix("arm@arms.") for other in known if other.startswith("arm@arms.")])
    if re.match(r"(engine\.(flags|env)|arms\.\w+\.options)\.", key):
        return ConfigError(f"{key}: not set in this rig; add it with +{key}=VALUE")
    parent, _, name = key.rpartition(".")
    if parent and name in _fields(parent.split(".")):
        return ConfigError(f"{key}: not stated in this rig; add it with +{key}=VALUE, or state it in the YAML")
    beside = [other for other in known if other.rpartition(".")[0] == parent and "@" not in other] if "@" not in key else []
    return ConfigError(f"{key}: unknown key {where}; {near(key, beside or known)}")


def _no_arm(key: str, arms: Sequence[str]) -> ConfigError:
    """An arm that the rig does not have, asked for in one of the ways that seem natural. One is added by name, with a +."""
    name = key.rpartition(".")[2] if "." in key else "NAME"
    close = difflib.get_close_matches(name, arms, n=1, cutoff=0.7)
    meant = f"did you mean 'arm@arms.{close[0]}'? " if close else ""
    return ConfigError(f"{key}: this rig has no such arm; {meant}to add one: +arm@arms.{name}=OPTION (options: rigs/arm)")
