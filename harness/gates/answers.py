"""Right or wrong, where a prompt has an answer: numbers by exact match, functions by their tests.

GSM8K: the number behind the last `Answer:`, else the last number of an answer that ended by itself. An answer that was cut
before it said `Answer:` is wrong: what it would have said is not known.
HumanEval: the first code block that defines the asked function, behind what the prompt's own code has before it (imports,
helpers), then the problem's tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
_BLOCK = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


def number_given(text: str, ended: bool) -> str | None:
    """The number that an answer gives, as written, or null. `ended`: it stopped by itself and was not cut."""
    _, said, behind = text.rpartition("Answer:")
    if said:
        found = _NUMBER.search(behind)
        return found[0] if found else None
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers and ended else None


def same_number(given: str | None, right: str) -> bool:
    """Equal as decimals, commas and currency signs aside: 1,430 is $1430.00."""
    if given is None:
        return False
    try:
        return _decimal(given) == _decimal(right)
    except InvalidOperation:
        return False


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("$", ""))


def program(prompt: str, text: str, answer: Mapping[str, Any]) -> str | None:
    """The answer's function with its tests as one program, or null when no code defines it."""
    name = str(answer["entry_point"])
    code = next((block for block in _code_blocks(text) if _defines(block, name)), None)
    if code is None:
        return None
    return f"{_preamble(prompt, name)}\n{code}\n{answer['test']}\ncheck({name})\n"


def _code_blocks(text: str) -> list[str]:
    """Fenced blocks, the last one also unclosed; without a fence the text itself, from its first line of code on."""
    blocks = _BLOCK.findall(text)
    if blocks:
        return [str(block) for block in blocks]
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if re.match(r"(def|from|import) ", line)), len(lines))
    return ["\n".join(lines[start:])]


def _defines(code: str, name: str) -> bool:
    return re.search(rf"^\s*def {re.escape(name)}\(", code, re.MULTILINE) is not None


def _preamble(prompt: str, name: str) -> str:
    """What the prompt's code has before the asked function."""
    code = "\n".join(_BLOCK.findall(prompt))
    return code.partition(f"def {name}(")[0]
