"""How to get a file that a rig names by its path: the command, where the rig says which hub repository has it."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath

GGUF_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+-gguf", re.IGNORECASE)
TOKENIZER_FILES = ["*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]


def fetch_command(path: str, repository: str | None) -> str | None:
    """The command that puts the file where the rig looks for it; null where the rig does not say where it comes from."""
    if repository is None:
        return None
    file = PurePath(path)
    return f"hf download {repository} {file.name} --local-dir {file.parent}"


def gguf_remedy(location: str, key: str) -> str | None:
    """What to do where a rig names a hub repository of GGUF files, of which one is meant; null where it names none."""
    if not GGUF_REPOSITORY.fullmatch(location):
        return None
    return f"fetch the file that you mean: hf download {location} FILE.gguf --local-dir checkpoints, and set {key} to it"


def tokenizer_command(repository: str, revision: str) -> str:
    """The command that gets what renders prompts, and none of the weights."""
    patterns = shlex.join(TOKENIZER_FILES)
    return f"hf download {repository} --revision {revision} --include {patterns}"
