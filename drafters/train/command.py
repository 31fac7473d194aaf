"""How a command of training ends: an interrupt, SIGTERM included, after its checkpoint; what is asked wrongly in one line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable


def run_command(work: Callable[[], None]) -> int:
    """The exit code: 0, 130 after an interrupt, 2 for a ValueError or a missing file."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError) as error:
        print(f"samerig: {error}", file=sys.stderr)
        return 2
    return 0
