"""How a command of training begins and ends: help, a recipe to ask for, an interrupt, and what is asked wrongly in one line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from drafters.train.recipe import known_recipes

_GOES_ON = "stopped; the same command goes on from the last checkpoint"


def run_recipe_command(doc: str, arguments: list[str], work: Callable[[], None], stopped: str = _GOES_ON) -> int:
    """`run_command` where the first argument names a recipe: `doc` for --help, its first command for no argument at all."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(doc)
        return 0
    if not arguments:
        usage = next(line for line in doc.splitlines() if line.startswith("python -m")).partition("    ")[0]
        print(f"samerig: usage: {usage}; known recipes are {known_recipes()}", file=sys.stderr)
        return 2
    return run_command(work, stopped)


def run_command(work: Callable[[], None], stopped: str = _GOES_ON) -> int:
    """The exit code: 0, 130 after an interrupt, 2 for a ValueError or a missing file."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError) as error:
        print(f"samerig: {error}", file=sys.stderr)
        return 2
    return 0
