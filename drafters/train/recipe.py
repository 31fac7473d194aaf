"""A training recipe: what to learn from what, as Hydra configs under `drafters/train/recipes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

FOLDER = Path(__file__).parent / "recipes"


class Recipe(BaseModel):
    """Every key must be stated in YAML; `recipes/base.yaml` explains them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    objective: str
    data: str
    answers: int | None = Field(gt=0, strict=True)
    out: str
    work: str
    config: dict[str, Any]
    options: dict[str, Any]
    drafter: str
    drafter_options: dict[str, Any]
    initial: str | None
    steps: int = Field(gt=0)
    batch: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    warmup: int = Field(ge=0)
    floor: float = Field(ge=0, le=1)
    weight_decay: float = Field(ge=0)
    clip: float = Field(gt=0)
    seed: int
    threads: int = Field(gt=0)
    checkpoint_minutes: float = Field(gt=0)
    evaluate_minutes: float = Field(gt=0)
    held_out_budget: int = Field(gt=0)
    held_out_prompts: int = Field(gt=0)
    held_out_tokens: int = Field(gt=1)

    def identity(self) -> str:
        """What must be equal for training to go on from a checkpoint: everything but length, pace of reports and paths."""
        free = {"out", "work", "threads", "checkpoint_minutes", "evaluate_minutes", "held_out_prompts", "held_out_tokens"}
        free |= {"answers"} if self.answers is None else set()  # the key is younger than the shipped drafters
        return json.dumps(self.model_dump(exclude=free), sort_keys=True)


def known_recipes() -> str:
    return ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "base"))


def read_recipe(name: str, overrides: list[str]) -> Recipe:
    """Raises ValueError, one line, for an unknown recipe, key or value."""
    if not (FOLDER / f"{name}.yaml").is_file() or name == "base":
        raise ValueError(f"recipe '{name}' is unknown; known are {known_recipes()}")
    try:
        with initialize_config_dir(str(FOLDER), version_base="1.3"):
            found = OmegaConf.to_container(compose(name, overrides), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(f"recipe '{name}': {str(error).splitlines()[0]}") from None
    try:
        return Recipe.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"recipe '{name}': {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
