"""Runs to look at: six arms with everything measured, two sessions of nothing, shared by the tests of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def six_arms_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A claim run, cut after three blocks, of six arms and the A/A arm at two levels of concurrency, made of synthetic rows."""
    import six_arms

    return six_arms.write(tmp_path_factory.mktemp("results") / "six-arms", six_arms.simulate(3))
