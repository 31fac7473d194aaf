"""Execute notebooks/*.py (percent format) into .ipynb beside them: `make notebooks`, or with names of notebooks.

Cells get fixed ids and no timing, so that executing again on the same run changes nothing but what changed. A notebook that
fails is not written. Needs the extra `notebooks`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def execute(source: Path) -> None:
    """Run one notebook in its folder and write it. Raises CellExecutionError of nbclient when a cell fails."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    nbformat.write(notebook, source.with_suffix(".ipynb"))
    print(source.with_suffix(".ipynb").name)


def main(names: list[str]) -> None:
    """All notebooks, or those named without a suffix."""
    for source in sorted(FOLDER.glob("*.py")):
        if not names or source.stem in names:
            execute(source)


if __name__ == "__main__":
    main(sys.argv[1:])
