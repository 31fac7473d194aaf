"""Runs a command and ends its whole process group when stdin closes: no harness that dies leaves a server behind.

`python server_guard.py COMMAND ...`, started as the leader of a new session. Standard library only, run by path. Exits with
the command's code, or 128 + signal. SIGTERM to the group is passed by, because the guard must outlive what it guards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 10.0


def main(argv: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: what is ignored would be inherited
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # an orderly exit would wait for the thread that reads stdin
