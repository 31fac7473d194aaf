"""What a notebook needs to find its run: the committed sample, or what RESULTS names."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "results" / "sample"
PUBLISHED = ROOT / "results" / "published" / "claims.parquet"


def run_folder() -> Path:
    """The run in the folder that the environment variable RESULTS names, or the sample: itself, or its first run by name.

    Raises FileNotFoundError where there is none.
    """
    return run_folders()[0]


def run_folders() -> list[Path]:
    """All runs of that folder, by name; itself alone if it is a run. Raises FileNotFoundError where there is none."""
    folder = Path(os.environ.get("RESULTS") or SAMPLE)
    runs = [folder] if (folder / "run.json").exists() else sorted(path.parent for path in folder.glob("*/run.json"))
    if not runs:
        raise FileNotFoundError(f"{folder}: no run here; set RESULTS to the folder of a run")
    return runs
