"""What all tests share: the embedded target, as every rig resolves it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drafters.checkpoint import resolve_target

RIGS = Path(__file__).parents[1] / "rigs"


@pytest.fixture(scope="session")
def embedded_folder() -> Path:
    """The folder of the embedded target in the user's cache, unpacked there if need be."""
    t = yaml.safe_load((RIGS / "target" / "smollm2_135m.yaml").read_text(encoding="utf-8"))
    return resolve_target(t["source"], t["location"], t["file"], t["revision"], t["sha256"])
