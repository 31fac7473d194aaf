"""How to get a file that a rig names by its path: the command, where the rig says which hub repository has it."""

from __future__ import annotations

import shlex
from pathlib import PurePath

TOKENIZER_FILES = ["*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]


def fetch_command(path: str, repository: str | None) -> str | None:
    """The command that puts the file where the rig looks for it; null where the rig does not say where it comes from."""
    if repository is None:
        return None
    file = PurePath(path)
    return f"hf download {repository} {file.name} --local-dir {file.parent}"


def tokenizer_command(repository: str, revision: str) -> str:
    """The command that gets what renders prompts, and none of the weights."""
    patterns = shlex.join(TOKENIZER_FILES)
    return f"hf download {repository} --revision {revision} --include {patterns}"
