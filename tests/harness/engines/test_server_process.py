"""What is told of a server that ended: how, the error that its log begins with, and its last lines."""

import asyncio
import sys
from pathlib import Path

from harness.engines.server_process import ServerProcess

ECHO = "; ".join(
    ["print('(Worker) ERROR ValueError: 3 GiB are free, 6 were asked for')", "[print('echo', n) for n in range(9)]"]
)


def _ending(script: str, log: Path) -> str:
    async def go() -> str:
        process = ServerProcess([sys.executable, "-S", "-c", script], {}, log)
        await process.start()
        await process.settle(60)
        told = process.ending()
        await process.stop()
        return told

    return asyncio.run(go())


def test_the_first_error_is_told_when_the_last_lines_only_echo_it(tmp_path: Path) -> None:
    told = _ending(f"{ECHO}; raise SystemExit(1)", tmp_path / "log")
    assert told.startswith(
        "exited with code 1; first error: ValueError: 3 GiB are free, 6 were asked for; last log lines: echo 1 |"
    )


def test_an_error_among_the_last_lines_is_told_once(tmp_path: Path) -> None:
    assert _ending("raise SystemExit('OSError: no such file')", tmp_path / "log") == (
        "exited with code 1; last log lines: OSError: no such file"
    )
