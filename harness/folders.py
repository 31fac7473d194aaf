"""Folders that several processes write into, here or on other machines: made once, locked by one, cleaned of leftovers."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.durable import ASIDE

FULL = (errno.ENOSPC, errno.EDQUOT)
GLANCES, GLANCE_S = 5, 0.02


def require_folder(results: Path) -> None:
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ValueError(f"--results {results}: cannot be made a folder ({problem.strerror}); name one that can") from None
    if not os.access(results, os.W_OK):
        raise ValueError(f"--results {results}: is not writable; name a folder that is")


def require_place(option: str, file: Path) -> None:
    """Raises ValueError where no file of this name can be written, so that nothing is worked out first; writes nothing.

    Folders on its way may be missing: who writes makes them.
    """
    if file.is_dir():
        raise ValueError(f"{option} {file}: is a folder; name a file in it")
    near = next(folder for folder in file.absolute().parents if folder.exists())
    if not near.is_dir():
        raise ValueError(f"{option} {file}: {near} is no folder; name a file in one")
    try:
        if not file.exists():
            tempfile.TemporaryFile(dir=near).close()  # rights alone do not tell of a file system without writers
        elif not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        raise ValueError(f"{option} {file}: cannot be written ({problem.strerror}); name a place that can") from None


@contextmanager
def telling_full(folder: Path) -> Iterator[None]:
    """A disk without room, or a quota, as one line. Raises OSError; any other one passes as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        why = os.strerror(error.errno)
        raise OSError(
            f"{folder}: cannot be written ({why}); complete rows in it are safe, free some room and the same command resumes"
        ) from error


def new_folder(results: Path, run_id: str) -> Path:
    """A folder of that name, numbered if several runs start in one second, on this machine or another."""
    number = 1
    while True:
        folder = results / (run_id if number == 1 else f"{run_id}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def acquire(folder: Path) -> int:
    """An exclusive lock that the kernel drops with this process, however it ends."""
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock_soon(lock)
    except BlockingIOError:
        os.close(lock)
        raise RuntimeError(
            f"{folder}: another process is measuring this run; wait for it; a second one beside it,"
            " with --fresh too, would disturb both, so use --fresh only once it has ended"
        ) from None
    except OSError as error:
        os.close(lock)
        raise ValueError(
            f"{folder}: its file system cannot lock files ({error.strerror}); mount it with locks, or name another --results"
        ) from None
    return lock


def _lock_soon(lock: int) -> None:
    """At once, or behind the instant for which `is_held` shares it: a report that looks turns no bench away."""
    for _ in range(GLANCES):
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(GLANCE_S)
    return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(folder: Path) -> bool:
    """Whether a process of this machine holds the lock of `acquire` now. Shares it for an instant to find out, writes nothing;
    false where there is no lock file, or no locks."""
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def remove_leftovers(folder: Path) -> None:
    """What a killed process was writing."""
    for path in (*folder.glob(f"{ASIDE}*"), *folder.glob(f"*/{ASIDE}*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
