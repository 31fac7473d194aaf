"""The hash of a configuration, from its plain data alone: what names an experiment, and tells whether a stored one is still it.

It needs no model of the configuration, so that a file which another version saved can be held against what it was then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

OPEN = ("flags", "env", "options", "engine_flags", "template_options")  # maps whose keys are an engine's or a drafter's own


def config_hash(config: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON (sorted keys, no spaces) of a configuration without `published` and nulls.

    A null is no setting: a field that a later version adds, null where nobody sets it, leaves the experiment what it was. Under
    a key of `OPEN` it is one.
    """
    return _sha256(_without_nulls({key: value for key, value in config.items() if key != "published"}))


def hashes_of(config: Mapping[str, Any]) -> set[str]:
    """Hashes under which a run with this configuration may have been measured: the first versions hashed nulls too."""
    return {config_hash(config), _sha256(config)}


def _without_nulls(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {k: v if k in OPEN else _without_nulls(v) for k, v in data.items() if v is not None}
    return [_without_nulls(one) for one in data] if isinstance(data, list) else data


def _sha256(data: Any) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()
