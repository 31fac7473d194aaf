"""Train a drafter.

python -m drafters.train RECIPE [key=value ..]      start, or go on from the last checkpoint
python -m drafters.train eagle3
python -m drafters.train mtp steps=8000 learning_rate=1e-3 work=training/mtp_long

Recipes are the YAML files in drafters/train/recipes; base.yaml explains the keys. The drafter is exported in the published
format with a model card. An interrupt saves a checkpoint.
"""

from __future__ import annotations

import signal
import sys

import torch

from drafters.train.fit import Training
from drafters.train.recipe import read_recipe


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    try:
        recipe = read_recipe(arguments[0], arguments[1:])
        torch.set_num_threads(recipe.threads)
        training = Training(recipe)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        training.run()
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError) as error:
        print(f"samerig: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
