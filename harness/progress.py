"""One bar for the whole run, drawn only between windows: a redraw inside one would cost the engine its CPU."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn


class RunProgress:
    """Progress in cells, weighted by the tokens they may ask for. Plain, unbroken lines where the console is no terminal."""

    def __init__(self, console: Console, total_weight: int, done_before: int = 0) -> None:
        self._console = console
        self._total = max(total_weight, 1)
        self._done = self._done_before = done_before
        self._started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("ETA {task.fields[eta]}"))
        self._bar = Progress(*columns, console=console, auto_refresh=False) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("starting", total=self._total, eta=self.eta())

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, description="done" if kind is None else "stopped", completed=self._done, eta=self.eta()
            )
            self._bar.stop()

    def tell(self, doing: str) -> None:
        """Say what starts now. Call it outside timed windows only."""
        if self._bar is None or self._task is None:
            told = f"{100 * self._done // self._total:3d} %  ETA {self.eta():>7}  {doing}"
            self._console.print(told, highlight=False, soft_wrap=True)
        else:
            self._bar.update(self._task, description=doing, completed=self._done, eta=self.eta(), refresh=True)

    def warn(self, text: str) -> None:
        """Say something that stays on the screen. Call it outside timed windows only."""
        self._console.print(f"warning: {text}", highlight=False, soft_wrap=True)

    def advance(self, weight: int) -> None:
        """A cell is complete. Drawn with the next `tell`."""
        self._done += weight

    def eta(self) -> str:
        """Time left at the pace so far, launches and warm-ups included."""
        here = self._done - self._done_before
        if not here:
            return "--:--"
        left = (time.monotonic() - self._started) * (self._total - self._done) / here
        return f"{int(left) // 3600:d}:{int(left) % 3600 // 60:02d}:{int(left) % 60:02d}"
