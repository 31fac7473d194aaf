"""The request that keeps cores awake: made while a run measures, withdrawn after it, absent where it is not allowed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.awake import SHALLOW_US, cores_awake


@pytest.mark.parametrize(("driver", "limit_us"), [("haltpoll", 0), ("intel_idle", SHALLOW_US), (None, SHALLOW_US)])
def test_a_guest_asks_for_no_halt_at_all_and_a_machine_of_its_own_for_a_shallow_one(
    tmp_path: Path, driver: str | None, limit_us: int
) -> None:
    request, name = tmp_path / "request", tmp_path / "driver"
    request.touch()
    if driver:
        name.write_text(f"{driver}\n")
    with cores_awake(True, request, name) as held:
        assert held == limit_us
        assert int.from_bytes(request.read_bytes(), sys.byteorder) == limit_us
        assert request.stat().st_size == 4


def test_the_request_ends_with_the_block_also_when_that_fails(tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.touch()
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    with pytest.raises(ZeroDivisionError), cores_awake(True, request):
        _ = 1 / 0
    assert (os.listdir("/proc/self/fd") if before else []) == before


def test_nothing_is_asked_where_it_is_not_wanted_or_not_allowed(tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.touch()
    with cores_awake(False, request) as held:
        assert held is None
        assert not request.read_bytes()
    with cores_awake(True, tmp_path / "no such device") as held:
        assert held is None
