"""Runs inside the sandbox, as a script of its own: shuts the doors, then runs the program that comes on stdin.

    python -I -B sandboxed.py CPU_SECONDS MEMORY_BYTES

The first line of stdin is a nonce, so that an answer cannot claim to have passed. Writes one JSON object to the stdout that
it was started with: how it is isolated, the outcome, and the nonce once the program has run to its end. The program itself
sees no stdout, stderr or stdin.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
NOBODY = 65534
LANDLOCK_CREATE, LANDLOCK_RESTRICT, PR_SET_NO_NEW_PRIVS = 444, 446, 38
# Write, remove and make of every kind: all that the first version of Landlock can forbid but reading, listing and executing.
LANDLOCK_WRITES = 0b1_1111_1111_0010
BLOCKED = (
    *("os.kill", "os.killpg", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "signal.pthread_kill"),
    *(
        "os.remove",
        "os.rmdir",
        "os.rename",
        "os.chmod",
        "os.chown",
        "os.putenv",
        "subprocess.",
        "socket.",
        "shutil.",
        "ctypes.",
    ),
)


def main() -> None:
    cpu_s, memory = int(sys.argv[1]), int(sys.argv[2])
    nonce, _, source = sys.stdin.read().partition("\n")
    told = os.fdopen(os.dup(1), "w")
    isolation = _close_doors(cpu_s, memory)
    error = "passed"
    try:
        exec(compile(source, "<answer>", "exec"), {"__name__": "__main__"})  # the one purpose of this script
    except BaseException as failure:  # noqa: BLE001 - whatever an answer raises, SystemExit included, is a failed answer
        error = type(failure).__name__
    told.write(json.dumps({"isolation": isolation, "outcome": error, "nonce": nonce if error == "passed" else None}))
    told.flush()
    os._exit(0)


def _close_doors(cpu_s: int, memory: int) -> list[str]:
    """Limits always; the rest as far as this system allows, named in the result."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, limit in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    done = ["limits"]
    doors: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("no network", lambda: _without_network(libc)),
        ("nobody", _as_nobody),
        ("no writes", lambda: _without_writes(libc)),
    )
    done += [name for name, close in doors if close()]
    sys.addaudithook(_refuse)
    return [*done, "no processes"]


def _without_network(libc: Any) -> bool:
    """An empty network namespace; inside a user namespace where only that is allowed."""
    return bool(libc.unshare(CLONE_NEWNET) == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)


def _as_nobody() -> bool:
    """Root gives itself up, unless nobody could read this interpreter's library; another user stays who they are."""
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        os.listdir(os.path.dirname(os.__file__))
    except OSError:
        os.seteuid(0)
        os.setegid(0)
        return False
    os.seteuid(0)
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return True


def _without_writes(libc: Any) -> bool:
    """Landlock without a rule: from here on nothing may be created, written or removed anywhere."""
    handled = ctypes.c_uint64(LANDLOCK_WRITES)
    rules = libc.syscall(LANDLOCK_CREATE, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if rules < 0 or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.syscall(LANDLOCK_RESTRICT, rules, 0) == 0)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event.startswith(BLOCKED):
        raise PermissionError(f"{event} is refused to an answer")


if __name__ == "__main__":
    main()
