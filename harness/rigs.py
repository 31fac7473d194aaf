"""Finding rig files: names in `rigs/`, or YAML files anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.config_errors import ConfigError, from_yaml, near

ROOT = Path(__file__).resolve().parents[1]
RIGS = ROOT / "rigs"
PUBLISHED = "published"
BEGIN = "begin it with `defaults: [cpu_smollm2, _self_]`, then state what differs"


@dataclass(frozen=True, slots=True)
class RigFile:
    """Where Hydra finds a primary config. A rig outside `rigs/` sees the groups of `rigs/` behind those beside it.

    One that says what was published of it, as a copy of a shipped one does, sees the groups of published rigs first.
    """

    folder: Path
    name: str

    def overrides(self) -> list[str]:
        """What Hydra needs on the command line to find the groups."""
        paths = ",".join(f'"file://{folder}"' for folder in self._behind())
        return [f"hydra.searchpath=[{paths}]"] if paths else []

    def _behind(self) -> list[Path]:
        """Folders whose groups it sees behind those beside it."""
        is_copy = self.folder not in (RIGS, RIGS / PUBLISHED) and PUBLISHED in self._content()
        return [folder for folder in ((RIGS / PUBLISHED, RIGS) if is_copy else (RIGS,)) if folder != self.folder]

    def _content(self) -> dict[str, Any]:
        """Its keys as written; none for a text that is no YAML, which composing tells."""
        try:
            return yaml.safe_load((self.folder / f"{self.name}.yaml").read_text("utf-8")) or {}
        except yaml.YAMLError:
            return {}

    def groups(self) -> list[str]:
        """Names of the config groups it can choose from."""
        return sorted({path.name for folder in (self.folder, *self._behind()) for path in folder.iterdir() if _is_group(path)})

    def without_defaults(self) -> str:
        """What to say beside a missing key: that the file rests on no other rig; nothing where it does."""
        return "" if "defaults" in self._content() else f"; {self.name}.yaml has no defaults: {BEGIN}"


def _is_group(path: Path) -> bool:
    return path.is_dir() and path.name != PUBLISHED and any(path.glob("*.yaml"))


def find_rig(rig: str) -> RigFile:
    """A name in `rigs/`, `published/NAME`, or the path of a YAML file. Raises ConfigError with near matches."""
    path = Path(rig)
    if len(path.parts) == 2 and path.parts[0] == PUBLISHED and not path.suffix:
        names = [file.stem for file in _rig_files(RIGS / PUBLISHED)]
        if path.name not in names:
            raise ConfigError(f"rig '{rig}': not in rigs/{PUBLISHED}/; {near(path.name, names)}")
        return RigFile(RIGS / PUBLISHED, path.name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.suffix != ".yaml" or not path.is_file():
            beside = [file.stem for file in path.parent.glob("*.yaml")] or [file.stem for file in _rig_files()]
            how = f"give the path of one, or the name of a rig (samerig rigs); {near(path.stem, beside)}"
            raise ConfigError(f"rig '{rig}': no such .yaml file in {path.resolve().parent}; {how}")
        _require_mapping(rig, path)
        return RigFile(path.resolve().parent, path.stem)
    names = [path.stem for path in _rig_files()]
    if rig not in names:
        raise ConfigError(f"rig '{rig}': not in rigs/; {near(rig, names)}")
    return RigFile(RIGS, rig)


def _require_mapping(rig: str, path: Path) -> None:
    """Raises ConfigError for a file that is no text or no mapping; what is wrong inside is told where it is composed."""
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"rig '{rig}': is no text in UTF-8; give a YAML file") from None
    except yaml.YAMLError:
        return
    if found is not None and not isinstance(found, dict):
        kind = type(found).__name__
        raise ConfigError(f"rig '{rig}': holds a {kind}; a rig is a mapping of keys, start from rigs/smoke.yaml")


def list_rigs() -> list[tuple[str, str]]:
    """`(name, summary)` of every rig in `rigs/`, without composing them."""
    return [(path.stem, _summary(path)) for path in _rig_files()]


def list_published() -> list[tuple[str, str]]:
    """`(published/NAME, summary)` of every rig that somebody else published results for."""
    return [(f"{PUBLISHED}/{path.stem}", _summary(path)) for path in _rig_files(RIGS / PUBLISHED)]


def _rig_files(folder: Path | None = None) -> list[Path]:
    if not RIGS.is_dir():
        raise ConfigError(f"no rigs directory at {RIGS}; run from a checkout, installed with pip install -e .")
    return sorted((folder or RIGS).glob("*.yaml"))


def _summary(path: Path) -> str:
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except UnicodeDecodeError:
        return "cannot be read: no text in UTF-8"
    except yaml.YAMLError as error:
        return f"cannot be read: {from_yaml(error)}"
    return str(config.get("summary", "no summary")) if isinstance(config, dict) else "not a rig: a rig is a mapping of keys"
