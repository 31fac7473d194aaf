"""Train a drafter.

python -m drafters.train RECIPE [key=value ..]      start, or go on from the last checkpoint
python -m drafters.train eagle3
python -m drafters.train mtp steps=8000 learning_rate=1e-3 work=training/mtp_long

Recipes are the YAML files in drafters/train/recipes; base.yaml explains the keys. The drafter is exported in the published
format with a model card. An interrupt saves a checkpoint. A drafter exported to another `out` than the shipped one's is
compared with the shipped one's card at the end.
"""

from __future__ import annotations

import sys

import torch

from drafters.train.command import run_recipe_command
from drafters.train.fit import Training
from drafters.train.recipe import read_recipe
from drafters.train.shipped import beside_shipped


def main(arguments: list[str]) -> int:
    return run_recipe_command(__doc__ or "", arguments, lambda: train(arguments[0], arguments[1:]))


def train(name: str, overrides: list[str]) -> None:
    recipe = read_recipe(name, overrides)
    torch.set_num_threads(recipe.threads)
    Training(recipe).run()
    if line := beside_shipped(recipe):
        print(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
