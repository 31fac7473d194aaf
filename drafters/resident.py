"""What loading leaves in a process: freed memory that the heap keeps, and a high-water mark that is of the loading.

Unpacking weights passes through copies. How much of them the heap keeps differs from start to start, so without this two
servings of one configuration differ, and a drafter may seem to cost less than none.
"""

from __future__ import annotations

import ctypes
import gc
import re
import resource
from pathlib import Path

_CLEAR_REFS, _RESET_PEAK, _STATUS = Path("/proc/self/clear_refs"), "5", Path("/proc/self/status")  # proc(5)


def settle() -> None:
    """Give freed memory back to the system, and count the peak from now on, each where the system has a way."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return  # no Linux, or a /proc that cannot be written: the peak is the whole process's


def peak_bytes() -> int:
    """Most memory that this process has held since `settle`.

    `getrusage` is for other systems: on Linux its mark is never below what the parent held when it started this process.
    """
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.M)
    except OSError:
        found = None
    return 1024 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
