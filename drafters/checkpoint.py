"""Where a target's weights are, and what they are: resolving to a local folder, and a cheap hash of what is in it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from drafters.embedded import embedded_target, pin_problem

_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL_BYTES = 16 << 20  # files up to this size are hashed whole
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def resolve_target(source: str, location: str, file: str | None, revision: str | None, sha256: str | None) -> Path:
    """The local folder with `config.json`, tokenizer and safetensors; downloads or dequantises what is not there yet.

    Raises ValueError for an incomplete or wrong specification, FileNotFoundError for weights that cannot be had here.
    """
    if source == "package":
        return embedded_target(location, *_package_pin(file, sha256))
    if source == "hub":
        return _hub_folder(location, revision)
    if source == "folder":
        return _local_folder(location)
    raise ValueError(f"target.source: '{source}' is none of package, hub, folder")


def missing_target(source: str, location: str, file: str | None, revision: str | None, sha256: str | None) -> str | None:
    """What this machine lacks to resolve the target, or what is wrong with its pin, as one line, or null.

    Reads the disk only: no download, no build. The `sha256` of a folder is its `checkpoint_hash`.
    """
    try:
        if source == "package":
            return pin_problem(location, *_package_pin(file, sha256))
        if source == "hub":
            _check_revision(revision)
            _cached_snapshot(location, revision)
        else:
            return _folder_problem(resolve_target(source, location, file, revision, sha256), file, sha256)
    except (FileNotFoundError, ValueError) as problem:
        return str(problem)
    return None


def is_pinned(revision: str | None) -> bool:
    """Whether a hub revision is a full commit hash: a branch or tag can move between two runs."""
    return bool(revision and _COMMIT.fullmatch(revision))


def checkpoint_hash(folder: Path) -> str:
    """A sha256 that identifies a checkpoint folder at the cost of reading a few megabytes.

    Covers, for every regular file at the top level in name order: its name and size; the whole content up to 16 MiB; of
    larger files the safetensors header (tensor names, dtypes, shapes) and 64 samples of 4 KiB spread evenly over the file.
    It tells two trainings apart, and a truncated copy from a whole one; bytes changed between the samples are not seen.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        digest.update(path.read_bytes() if size <= _SMALL_BYTES else _sampled(path, size))
    return digest.hexdigest()


def _sampled(path: Path, size: int) -> bytes:
    with path.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little")) if path.suffix == ".safetensors" else b""
        parts = [header]
        for i in range(_SAMPLES):
            stream.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            parts.append(stream.read(_SAMPLE_BYTES))
    return b"".join(parts)


def _folder_problem(folder: Path, file: str | None, sha256: str | None) -> str | None:
    """A file that the rig names and the folder lacks, or another `checkpoint_hash` than `sha256`."""
    if file and not (folder / file).is_file():
        return f"target.file: '{file}' is not in {folder}; name a file of that folder, or set target.file=null"
    if sha256 and (found := checkpoint_hash(folder)) != sha256:
        return f"target.sha256: {folder} has {found} (checkpoint_hash), the rig pins {sha256}; fix the pin or the folder"
    return None


def _package_pin(file: str | None, sha256: str | None) -> tuple[str, str]:
    if not file or not sha256:
        raise ValueError("target: source 'package' needs target.file and target.sha256")
    return file, sha256


def _local_folder(location: str) -> Path:
    folder = Path(location).expanduser().resolve()
    if absent := _absent_files(folder):
        raise FileNotFoundError(f"target.location: {folder} lacks {absent}; point it at a Hugging Face model folder")
    return folder


def _hub_folder(location: str, revision: str | None) -> Path:
    try:
        return _cached_snapshot(location, revision)
    except FileNotFoundError as missing:
        where = f"{location} at revision {revision}"
        try:
            return Path(snapshot_download(location, revision=revision, allow_patterns=_WANTED))
        except GatedRepoError:
            raise FileNotFoundError(f"target.location: {where} is gated; accept its licence and run: hf auth login") from None
        except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as problem:
            raise FileNotFoundError(f"{missing}; the hub refused or is out of reach ({type(problem).__name__})") from None


def _cached_snapshot(location: str, revision: str | None) -> Path:
    """The snapshot in the local hub cache. The hub calls a half-downloaded one cached, so its files are checked here."""
    fetch = f"on a machine with a network run: hf download {location} --revision {revision}"
    try:
        folder = Path(snapshot_download(location, revision=revision, local_files_only=True, allow_patterns=_WANTED))
    except LocalEntryNotFoundError:
        raise FileNotFoundError(f"target.location: {location} at {revision} is not in the local hub cache; {fetch}") from None
    if absent := _absent_files(folder):
        raise FileNotFoundError(f"target.location: {location} at {revision} is cached without {absent}; {fetch}")
    return folder


def _check_revision(revision: str | None) -> None:
    if not is_pinned(revision):
        raise ValueError(f"target.revision: '{revision}' is not a commit hash and can move; pin the full 40 digits")


def _absent_files(folder: Path) -> str:
    """Names of the files that a model folder needs and lacks, comma separated; empty when it is complete."""
    needed = ["config.json", "tokenizer_config.json"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        needed += sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        needed.append("model.safetensors")
    return ", ".join(name for name in needed if not (folder / name).is_file())
