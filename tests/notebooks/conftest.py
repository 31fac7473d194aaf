"""A small synthetic run for notebooks while no sample is committed."""

import sys
from pathlib import Path

import pytest

HARNESS_TESTS = Path(__file__).parents[1] / "harness"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks of three arms."""
    sys.path[:0] = [str(HARNESS_TESTS), str(HARNESS_TESTS / "report")]
    import six_arms

    folder: Path = six_arms.write(
        tmp_path_factory.mktemp("results") / "small", six_arms.simulate(2, ("plain", "ngram", "eagle3"))
    )
    return folder
