"""Memory of a process after loading: what was freed is gone, and the peak is of what comes after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIB = 2**20
# Blocks below the size that malloc maps by itself, with one kept at the end: the heap cannot shrink by itself.
PROGRAM = f"""
import json, psutil
from drafters.resident import peak_bytes, settle
resident = lambda: psutil.Process().memory_info().rss
blocks = [bytearray(64 * 1024) for _ in range(3200)]
last = bytearray(64 * 1024)
full = resident()
del blocks
settle()
settled, peak = resident(), peak_bytes()
more = bytearray(b"x" * (100 * {MIB}))
print(json.dumps([full, settled, peak, peak_bytes()]))
"""


def test_freed_memory_goes_back_and_the_peak_is_counted_anew():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=ROOT)
    full, settled, peak, later = json.loads(done.stdout)
    assert full - settled > 150 * MIB
    assert peak < settled + 20 * MIB
    assert later - peak > 90 * MIB
