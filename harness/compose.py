"""From a rig's name and overrides to one judged `Run`: Hydra composes, pydantic judges, nothing is launched.

Every mistake is a `ConfigError` of one line. A dotted path in YAML is the only registry; `load_dotted` is the only loader.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from harness.arm_methods import check_methods
from harness.baselines import check_baselines
from harness.config import Run
from harness.config_errors import ConfigError, flat_keys, from_hydra, from_pydantic, from_yaml, near
from harness.config_hash import config_hash
from harness.config_lists import no_such_entry
from harness.fetch import fetch_command, gguf_remedy
from harness.published import published_of
from harness.rigs import ROOT, RigFile, find_rig, list_rigs

__all__ = [
    "ComposedRun",
    "ConfigError",
    "compose_run",
    "composed_of",
    "expand_sweep",
    "judge",
    "list_rigs",
    "load_dotted",
    "missing_parts",
]

CONCURRENCY_LIST = re.compile(r"concurrency=\s*(\d+(?:\s*,\s*\d+)+)\s*")


@dataclass(frozen=True, slots=True)
class ComposedRun:
    """A judged run with what it came from. `yaml` is the resolved configuration: saved with the results, it is the experiment.

    `config_hash` is that of `harness.config_hash`.
    """

    run: Run
    yaml: str
    config_hash: str
    rig: str
    overrides: tuple[str, ...]


def compose_run(rig: str, overrides: Sequence[str] = ()) -> ComposedRun:
    """Compose and judge one run. Raises ConfigError; imports no engine and launches nothing."""
    file = find_rig(rig)
    with _hydra_at(file):
        config = _compose(file, lists_for_concurrency(overrides))
    try:
        return judge(config, rig, overrides)
    except ConfigError as error:
        beside = file.without_defaults() if ": missing; " in str(error) else ""
        raise ConfigError(f"{error}{beside}") from None


def judge(config: DictConfig, rig: str, overrides: Sequence[str] = ()) -> ComposedRun:
    """What Hydra composed, resolved and validated. Raises ConfigError."""
    data = _resolved(config, rig)
    if type(level := data.get("concurrency")) is int:
        data["concurrency"] = [level]
    try:
        run = Run.model_validate(data)
    except ValidationError as error:
        raise from_pydantic(error, data, partial(_is_interpolation, OmegaConf.to_container(config, resolve=False))) from None
    check_methods(run)
    check_baselines(run)
    published_of(run)
    return composed_of(run, rig, overrides)


def composed_of(run: Run, rig: str, overrides: Sequence[str] = ()) -> ComposedRun:
    """A judged run with its YAML and hash. What was published about a rig is saved with it and is not in the hash."""
    plain = run.model_dump(mode="json", exclude=None if run.published else {"published"})
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return ComposedRun(run, text, config_hash(plain), rig, tuple(overrides))


def _is_interpolation(written: Any, path: Sequence[int | str]) -> bool:
    """Whether a rig, as it is written, has `${...}` at a path; false for a path that leaves it."""
    for step in path:
        inside = isinstance(written, dict) or (isinstance(written, list) and isinstance(step, int) and step < len(written))
        written = (written.get(step) if isinstance(written, dict) else written[step]) if inside else None
    return isinstance(written, str) and "${" in written


def _resolved(config: DictConfig, rig: str) -> dict[str, Any]:
    """Plain data without interpolations. A value that the rig must state (`???`) or an unknown reference is an error."""
    try:
        data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise from_hydra(error, rig, keys=[], groups=[]) from None
    return {str(key): value for key, value in data.items()} if isinstance(data, dict) else {}


def lists_for_concurrency(overrides: Sequence[str]) -> list[str]:
    """`concurrency=1,8` means the list `[1,8]`, measured inside one serving; `concurrency=[1],[8]` would be two jobs."""
    return [CONCURRENCY_LIST.sub(r"concurrency=[\1]", one) if CONCURRENCY_LIST.fullmatch(one) else one for one in overrides]


def expand_sweep(rig: str, overrides: Sequence[str]) -> list[list[str]]:
    """The override lists of a multirun's jobs, in the order in which Hydra's own sweeper makes them. Raises ConfigError."""
    with _hydra_at(find_rig(rig)):
        try:
            jobs = BasicSweeper.split_arguments(_parse(lists_for_concurrency(overrides)), max_batch_size=None)[0]
        except HydraException as error:
            raise ConfigError(f"sweep: {error}; use key=a,b,c or key=range(1,8)") from None
    return [list(job) for job in jobs]


@contextmanager
def _hydra_at(rig: RigFile) -> Iterator[None]:
    """Hydra initialised on the rig's folder for the length of the block, whatever was initialised outside."""
    outside = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(rig.folder), job_name="samerig", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outside


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    parsed: list[Override] = []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
            _require_key(parsed[-1].key_or_group, text)
        except HydraException:
            raise ConfigError(f"'{text}': not an override; write key=value, and quote a value with spaces or commas") from None
    return parsed


def _require_key(key: str, text: str) -> None:
    """`=3` parses for Hydra, as a value without a key."""
    if not key.strip():
        raise ConfigError(f"'{text}': no key before the '='; write key=value, such as draft_budget=3")


def _compose(rig: RigFile, overrides: Sequence[str]) -> DictConfig:
    for one in _parse(overrides):
        if one.is_sweep_override():
            raise ConfigError(f"{one.key_or_group}: '{one.input_line}' is a sweep; add -m, or give one value")
        if one.value() == {} and not one.is_add() and not one.is_delete():
            raise ConfigError(f"{one.key_or_group}: an empty mapping changes nothing; remove an entry with ~KEY")
        if one.key_or_group in rig.groups() and _is_no_name(one):
            key = one.get_key_element().lstrip("+~")
            raise ConfigError(f"{key}: '{one.value()}' is no name; give the name of an option of this group")
    try:
        config: DictConfig = compose(rig.name, [*rig.overrides(), *overrides])
        return config
    except RecursionError:
        raise ConfigError(f"defaults of {rig.name}: a rig names itself there, or a rig that does; break the circle") from None
    except yaml.YAMLError as error:
        raise from_yaml(error) from None
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        known = _known(rig, overrides) if overrides else {}
        if wrong := no_such_entry(known, (one.key_or_group for one in _parse(overrides))):
            raise wrong from None
        if isinstance(error, TypeError):
            raise
        keys = [*flat_keys(known), *(f"arm@arms.{arm}" for arm in known.get("arms", {}))] if known else []
        raise from_hydra(error, rig.name, keys, rig.groups(), [name for name, _ in list_rigs()]) from None


def _is_no_name(one: Override) -> bool:
    """A number, nothing or an empty text where a group's option belongs; to remove a group is another thing."""
    return not one.is_delete() and (one.value() in (None, "") or isinstance(one.value(), int | float))


def _known(rig: RigFile, overrides: Sequence[str]) -> dict[str, Any]:
    """What an override may name: the rig composed with the groups that were chosen, without any value that was set."""
    groups = [one for one, parsed in zip(overrides, _parse(overrides), strict=True) if parsed.key_or_group in rig.groups()]
    config = OmegaConf.to_container(_compose(rig, groups if len(groups) < len(overrides) else []), resolve=False)
    return {str(key): value for key, value in config.items()} if isinstance(config, dict) else {}


def load_dotted(path: str) -> Any:
    """The object that a dotted path names. Raises ConfigError when this version has no such thing, or lacks what it needs."""
    module_name, _, name = path.rpartition(".")
    if not module_name.startswith(("harness.", "drafters.")) and module_name not in ("harness", "drafters"):
        raise ConfigError(f"{path}: a dotted path may name only what is inside harness. or drafters.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise ConfigError(f"{path} is not in this version; there is no module {error.name}") from None
        raise ConfigError(f"{path} needs the package '{error.name}', which is not installed; pip install it") from None
    except ImportError as error:
        raise ConfigError(f"{path} cannot be imported: {error}; mend that module or its packages") from None
    if not hasattr(module, name):
        own = {n: found for n, found in vars(module).items() if isinstance(found, type) and found.__module__ == module_name}
        drafters = [n for n, found in own.items() if hasattr(found, "propose")]
        raise ConfigError(f"{path} is not in this version; {near(name, drafters or own)}")
    return getattr(module, name)


def missing_parts(run: Run) -> tuple[str, ...]:
    """What a composed run names and this checkout or machine does not have, a line each: code, and checkpoints on disk."""
    paths = [("engine adapter", run.engine.adapter), ("target.implementation", run.target.implementation)]
    paths += [(f"arms.{name}.drafter", arm.drafter) for name, arm in run.arms.items() if arm.drafter]
    return (*filter(None, (_unloadable(key, path) for key, path in paths)), *_absent_checkpoints(run))


def _unloadable(key: str, path: str) -> str | None:
    try:
        load_dotted(path)
    except ConfigError as error:
        return f"{key}: {error}"
    return None


def _absent_checkpoints(run: Run) -> Iterator[str]:
    """Checkpoints without a revision are folders or files, relative to the repository or to here."""
    for name, arm in run.arms.items():
        if (found := arm.checkpoint) is None or found.revision:
            continue
        if not any((base / found.location).exists() for base in (ROOT, Path.cwd())):
            key, how = f"arms.{name}.checkpoint.location", fetch_command(found.location, found.fetched_from)
            named = gguf_remedy(found.location, key) or "give an existing path, or a revision if it is a hub repository"
            yield f"{key}: '{found.location}' does not exist; {f'fetch it: {how}' if how else named}"
