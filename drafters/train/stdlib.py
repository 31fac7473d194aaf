"""Functions and prose of Python's standard library (PSF licence): what code and editing prompts are made of."""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Tests, vendored packages and generated tables are not what people ask about.
_SKIPPED = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "encodings"}
_MOST_LINES, _MOST_CHARACTERS, _DOCSTRING = 24, 620, (40, 420)


@dataclass(frozen=True, slots=True)
class Function:
    """One function: where it stands, its head with docstring (a thing to complete), and its whole source."""

    module: str
    name: str
    head: str
    source: str
    docstring: str


def functions() -> Iterator[Function]:
    """Documented plain functions of the running interpreter's library, in order of path and line."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        if not _SKIPPED & set(module.split(".")):
            yield from _functions_of(path, module)


def _functions_of(path: Path, module: str) -> Iterator[Function]:
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (UnicodeDecodeError, SyntaxError):  # a few files of the library are broken on purpose
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)) and not node.decorator_list:
            first = node.body[0]
            head = _dedented(lines[node.lineno - 1 : first.end_lineno], node.col_offset)
            source = _dedented(lines[node.lineno - 1 : node.end_lineno], node.col_offset)
            if _usable(node, docstring, source):
                yield Function(module, node.name, head, source, docstring)


def _usable(node: ast.FunctionDef, docstring: str, source: str) -> bool:
    low, high = _DOCSTRING
    long_enough = low <= len(docstring) <= high and len(node.body) > 1
    return long_enough and source.count("\n") < _MOST_LINES and len(source) <= _MOST_CHARACTERS and source.isascii()


def _dedented(lines: list[str], columns: int) -> str:
    return "\n".join(line[columns:] if not line[:columns].strip() else line for line in lines)


COMPLETE = (
    "Complete the following Python function. Reply with the full function inside one code block.",
    "Finish this Python function so that it does what its docstring says. Reply with code only.",
    "Implement the body of this function. Put the whole function in a code block.",
    "Here is the beginning of a Python function. Write all of it.",
)
EXPLAIN = (
    "What does this Python function do?",
    "Explain the code below line by line.",
    "Describe what this function returns, and name one case in which it fails.",
    "Write three unit tests for this function.",
    "Review this code and suggest two improvements.",
)
EDIT = (
    "Rewrite this function with type annotations and leave everything else as it is.",
    "Repeat this code exactly, without any change.",
    "Remove the docstring from this function and return the rest unchanged.",
    "Rename the function to `{new}` and return the code with no other change.",
    "Add a comment above each statement and keep the code itself.",
    "Return the code with all string literals in double quotes.",
)
COPY = (
    "Repeat this text word for word:",
    "Copy the following paragraph exactly:",
    "Write this text again in capital letters:",
    "Put every sentence of this text on a line of its own and change nothing:",
    "Number the sentences of this text and keep their wording:",
    "Fix the spelling if needed and return the text otherwise unchanged:",
    "Translate this text to French, then repeat the original below it:",
    "Repeat this text twice, with an empty line in between:",
)
_NAMES = ("compute", "process_item", "helper", "run_step", "convert", "do_work", "evaluate", "lookup")


def complete(function: Function, draw: random.Random) -> str:
    return f"{draw.choice(COMPLETE)}\n\n```python\n{function.head}\n```"


def explain(function: Function, draw: random.Random) -> str:
    return f"{draw.choice(EXPLAIN)}\n\n```python\n{function.source}\n```"


def edit(function: Function, draw: random.Random) -> str:
    return f"{draw.choice(EDIT).format(new=draw.choice(_NAMES))}\n\n```python\n{function.source}\n```"


def copy(function: Function, draw: random.Random) -> str | None:
    """The docstring as a text to copy, where it is prose: sentences, no doctest and no list."""
    text = re.sub(r"\s+", " ", function.docstring)
    plain = ">>>" not in text and "  -" not in function.docstring and text.count(". ") >= 1 and len(text) > 80
    return f"{draw.choice(COPY)}\n\n{text}" if plain and text.isascii() else None
