"""Are the flags of the shipped rigs flags of the engine? Read out of the engine's own sources, which need not be installed.

    python scripts/engine_flags.py vllm-0.33.0-*.whl sglang-0.5.23-*.whl xllamacpp  (wheels from: pip download --no-deps)

A wheel is a zip: the argument declarations in it are parsed, nothing is imported or run. Every flag that a rig's plan uses with
that engine must be declared there, and every key of vLLM's --speculative-config must be a field of its SpeculativeConfig; why
this matters: engines reject an unknown flag only after the minutes that a launch takes, and a renamed one may be ignored.
`xllamacpp`, installed here, has llama.cpp's whole parser compiled in, but no way to call it: its flags and the names of its
drafting methods are read as strings of the library, which holds them for every llama.cpp program, not for llama-server alone.
Exit code 1 with the names of those that are not.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from harness.compose import compose_run, load_dotted
from harness.engines.method_support import admits
from harness.rigs import list_rigs

PARSERS = {
    # The front end's arguments moved between releases.
    "vllm": (
        "vllm/engine/arg_utils.py",
        *(f"vllm/entrypoints/{part}/cli_args.py" for part in ("common", "launchers", "openai")),
    ),
    "sglang": ("sglang/srt/arg_groups/fields/", "sglang/srt/server_args.py"),
}
SPECULATIVE = "vllm/config/speculative.py"
LLAMA_CPP = "xllamacpp"


def main(wheels: list[str]) -> int:
    if not wheels:
        print(__doc__)
        return 2
    faults = 0
    for wheel in wheels:
        if wheel == LLAMA_CPP:
            faults += llama_cpp_faults()
            continue
        name, release = Path(wheel).name.split("-")[:2]
        engine = "sglang" if name == "sglang" else "vllm"
        with zipfile.ZipFile(wheel) as archive:
            known, fields = declared_flags(archive, engine), speculative_fields(archive) if engine == "vllm" else set()
        print(f"{Path(wheel).name}: {len(known)} flags declared")
        for rig, words in commands(engine, release):
            used = {word for word in words if word.startswith("--")}
            unknown = sorted(used - known)
            if engine == "vllm" and "--speculative-config" in words:
                keys = json.loads(words[words.index("--speculative-config") + 1])
                unknown += [f"speculative-config: {key}" for key in keys if key not in fields]
            faults += len(unknown)
            print(f"  {rig}: {len(used)} flags" + (f", not known: {', '.join(unknown)}" if unknown else ", all known"))
    return 1 if faults else 0


def llama_cpp_faults() -> int:
    """Words that start with a dash, and methods, that llama.cpp's library does not hold."""
    spec = importlib.util.find_spec(LLAMA_CPP)
    if spec is None or spec.origin is None:
        print(f"{LLAMA_CPP}: not installed in {sys.executable}; pip install 'samerig[llamacpp]'")
        return 1
    strings = whole_strings(next(Path(spec.origin).parent.glob("*.so")).read_bytes())
    build = version(LLAMA_CPP)
    print(f"{LLAMA_CPP} {build}: {sum(text.startswith('--') for text in strings)} strings that look like flags")
    faults = 0
    for rig, words in commands("llama_cpp", build):
        used = [word for word in words if word.startswith("--")]
        unknown = sorted({*used, words[words.index("--spec-type") + 1]} - {"none"} - strings)
        faults += len(unknown)
        print(f"  {rig}: {len(used)} flags" + (f", not known: {', '.join(unknown)}" if unknown else ", all known"))
    return faults


def whole_strings(library: bytes) -> set[str]:
    """Whole strings that look like a flag or a method's name: what stands between two zero bytes, not a part of a sentence."""
    return {text.decode() for text in re.findall(rb"(?<=\0)[a-z0-9-]{3,60}(?=\0)", library)}


def commands(engine: str, release: str) -> Iterator[tuple[str, list[str]]]:
    """Name and words of every arm of every shipped rig that this version of the engine serves."""
    for rig, _ in list_rigs():
        run = compose_run(rig).run
        if f".{engine}." in run.engine.adapter and (run.engine.version is None or admits(run.engine.version, release)):
            for name, arm in run.arms.items():
                plan = load_dotted(run.engine.adapter).plan(run, arm)
                yield f"{rig} {name}", [*plan.base, *plan.speculation]


def declared_flags(archive: zipfile.ZipFile, engine: str) -> set[str]:
    """Flags that the parsers declare: strings that look like one, and fields of the dataclasses that become flags."""
    flags: set[str] = set()
    for name in archive.namelist():
        if name.endswith(".py") and name.startswith(PARSERS[engine]):
            tree = ast.parse(archive.read(name))
            flags |= {text for text in _strings(tree) if text.startswith("--") and " " not in text}
            flags |= {f"--{field.replace('_', '-')}" for field in _fields(tree)}
    return flags | {f"--no-{flag[2:]}" for flag in flags}  # both engines' boolean flags have this form


def speculative_fields(archive: zipfile.ZipFile) -> set[str]:
    return set(_fields(ast.parse(archive.read(SPECULATIVE)), "SpeculativeConfig"))


def _strings(tree: ast.Module) -> Iterator[str]:
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _fields(tree: ast.Module, owner: str | None = None) -> Iterator[str]:
    """Annotated names in the bodies of classes, or of the one class named."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and owner in (None, node.name):
            yield from (
                item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
