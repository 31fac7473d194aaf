"""A disk without room costs what was being written, and is one line that says where, what is safe and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from scripted_bench import run_bench, scripted_run

from harness import durable
from harness.cli import one_line
from harness.config import Run
from harness.folders import telling_full
from harness.store import read_tables

FAST = {"step_ms": 1.0, "prefill_ms": 1.0}


class Disk:
    """Writes Parquet until it has written `room` tables, then as a full disk does."""

    def __init__(self, room: int, number: int = errno.ENOSPC) -> None:
        self.room, self.number, self.write = room, number, durable.pq.write_table

    def __call__(self, table: object, path: Path) -> None:
        if self.room == 0:
            raise OSError(self.number, f"Error writing bytes to file. Detail: [errno {self.number}]")
        self.room -= 1
        self.write(table, path)


def small() -> Run:
    return scripted_run(FAST, {"blocks": 1})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 7, 12])
def test_a_full_disk_is_one_line_and_what_was_complete_is_there_when_the_run_goes_on(
    room: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(durable.pq, "write_table", Disk(room, number))
        with pytest.raises(OSError, match="complete rows in it are safe") as caught:
            run_bench(small(), tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("*/run.json"))
    assert one_line(caught.value) == (
        f"{folder}: cannot be written ({os.strerror(number)}); complete rows in it are safe, "
        "free some room and the same command resumes"
    )
    whole = {path.name for path in (folder / "cells").iterdir() if not path.name.startswith(durable.ASIDE)}
    before = read_tables(folder).requests
    assert set(before.cell_id) == whole
    assert run_bench(small(), tmp_path) == folder
    after = read_tables(folder).requests
    assert after.request_id.is_unique
    assert set(before.request_id) <= set(after.request_id)


def test_another_failure_of_the_file_system_keeps_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="not yours"), telling_full(tmp_path):
        raise PermissionError(errno.EACCES, "not yours")
