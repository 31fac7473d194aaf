"""An arm's method against what the arm files say: `rigs/arm/*.yaml` is the only list of methods, and it is data.

An engine that brings its own drafters refuses a method that it does not have. The reference engine takes the drafter from its
dotted path, so that a misspelt method would run and be told, and compared between engines, under a name that is none.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

import yaml

from harness.config import Run
from harness.config_errors import ConfigError
from harness.rigs import RIGS


@cache
def methods_of_drafters() -> Mapping[str, str]:
    """The method of every drafter that an arm file names, by dotted path."""
    files = (yaml.safe_load(path.read_text("utf-8")) for path in sorted((RIGS / "arm").glob("*.yaml")))
    return {str(file["drafter"]): str(file["method"]) for file in files if file.get("drafter")}


def check_methods(run: Run) -> None:
    """Raises ConfigError for a known drafter under another method. A drafter of one's own may be called anything."""
    for name, arm in run.arms.items():
        method = methods_of_drafters().get(arm.drafter or "", arm.method)
        if method == arm.method:
            continue
        known = sorted({*methods_of_drafters().values(), "plain"})
        close = difflib.get_close_matches(arm.method, known, n=1, cutoff=0.6)
        other = f"; for '{close[0]}', add its arm: +arm@arms.{close[0]}={close[0]}" if close and close[0] != method else ""
        raise ConfigError(f"arms.{name}.method: '{arm.method}', but {arm.drafter} is '{method}'; write method: {method}{other}")
