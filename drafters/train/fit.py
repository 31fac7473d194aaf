"""The training of one recipe: updates, checkpoints to go on from, held-out acceptance on the way, and the exported drafter.

A checkpoint is written every few minutes and at an interrupt, in one step; the same command goes on from it. An update depends
on its number, the recipe and the data only, so an interrupted training is the training that was not interrupted.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from drafters.checkpoint import resolve_target
from drafters.contract import Drafter
from drafters.ngram import NgramDrafter
from drafters.serving import load_dotted
from drafters.train.card import write_card
from drafters.train.curve import Curve
from drafters.train.data import Recipe as DataRecipe
from drafters.train.data import renderer
from drafters.train.evaluate import Acceptance, held_out_acceptance, spread
from drafters.train.objective import Objective, Teacher
from drafters.train.prompts import ROOT, read_prompts
from drafters.train.recipe import Recipe
from drafters.train.sequences import Sequences
from drafters.train.store import Answer, Asked, read_answers
from drafters.train.subset import subset

LOOKUP = {"min_n": 1, "max_n": 3}  # as in rigs/arm/ngram.yaml
_SAMPLE = 32  # sequences that statistics of channels are taken from
_SHOW_S = 30.0


class Training:
    """Target, data and objective of a recipe, and the state of its training."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        self.data = DataRecipe.read(ROOT / recipe.data)
        spec: dict[str, Any] = yaml.safe_load((ROOT / self.data.target).read_text(encoding="utf-8"))
        self.target_name = str(spec["name"])
        self.target_folder = resolve_target(spec["source"], spec["location"], spec["file"], spec["revision"], spec["sha256"])
        self.target = load_dotted(spec["implementation"])(
            self.target_folder, torch.float32, torch.device("cpu"), recipe.held_out_prompts, self.data.context
        )
        answers = subset(read_answers(ROOT / self.data.out, "train"), recipe.answers, recipe.seed)
        files = self.data.state_files
        counts_V = Sequences(answers, files, self.target, ()).token_counts(self.target.vocab_size)
        teacher = Teacher.of(self.target, counts_V)
        make = load_dotted(recipe.objective)
        taps = tuple(recipe.config.get("taps", ("final",)))
        self.sequences = Sequences(answers, files, self.target, taps)
        sample = [self.sequences.example(answer) for answer in answers[:_SAMPLE]]
        self.objective: Objective = make(self.target, teacher, sample, self._config(), recipe.options)
        self.tokens = sum(len(answer.output_ids) for answer in answers)
        self.step, self.seconds = 0, 0.0
        parameters = [p for p in self.objective.network.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self.work, self.out = ROOT / recipe.work, ROOT / recipe.out
        self.curve = Curve(self.work)

    def _config(self) -> dict[str, Any]:
        """The recipe's sizes, and where to start from if it names a trained folder."""
        initial = self.recipe.initial
        return self.recipe.config | ({} if initial is None else {"initial": str(ROOT / initial)})

    def run(self) -> None:
        """Train to the last update, export, evaluate on all held-out prompts, and write the card."""
        self._resume()
        begun = self.step
        saved = evaluated = shown = started = time.monotonic()
        sums: defaultdict[str, list[float]] = defaultdict(list)
        print(self._opening(), file=sys.stderr, flush=True)
        try:
            while self.step < self.recipe.steps:
                for key, value in self._update().items():
                    sums[key].append(value)
                now = time.monotonic()
                self.seconds, started = self.seconds + now - started, now
                if now - shown > _SHOW_S or self.step == self.recipe.steps:
                    shown = now
                    self._show({key: sum(v) / len(v) for key, v in sums.items()}, begun)
                    sums.clear()
                if now - saved > 60 * self.recipe.checkpoint_minutes:
                    saved = now
                    self.save()
                if now - evaluated > 60 * self.recipe.evaluate_minutes:
                    self._evaluate(final=False)
                    evaluated = started = time.monotonic()
        finally:
            self.save()
        write_card(self, self._evaluate(final=True), self.prompt_lookup())

    def _update(self) -> dict[str, float]:
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * self._pace()
        batch = self.sequences.batch(self.step, recipe.batch, recipe.seed)
        draw = random.Random(f"{recipe.seed} {self.step}")
        loss, shown = self.objective.loss(batch, self.step / recipe.steps, draw)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.objective.network.parameters(), recipe.clip)
        if not math.isfinite(float(norm)):
            raise FloatingPointError(f"update {self.step}: the gradient is {float(norm)}; lower learning_rate")
        self.optimizer.step()
        self.step += 1
        return {"loss": float(loss.detach()), "gradient": float(norm), **shown}

    def _pace(self) -> float:
        """Learning rate as a share of its peak: linear warm-up, then a cosine down to the floor."""
        recipe = self.recipe
        if self.step < recipe.warmup:
            return (self.step + 1) / recipe.warmup
        done = (self.step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
        return recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * done))

    def _show(self, means: dict[str, float], begun: int) -> None:
        self.curve.add(self.step, self.seconds, means)
        left = (self.recipe.steps - self.step) * self.seconds / max(self.step, 1)
        numbers = ", ".join(f"{key} {value:.3f}" for key, value in means.items())
        print(f"update {self.step} of {self.recipe.steps}: {numbers}; {left / 60:.0f} min to go", file=sys.stderr, flush=True)

    def _opening(self) -> str:
        count, passes = len(self.sequences.answers), self.recipe.steps * self.recipe.batch / len(self.sequences.answers)
        weights = sum(p.numel() for p in self.objective.network.parameters())
        return (
            f"{self.recipe.name}: {weights / 1e6:.2f} M weights; {count} sequences with {self.tokens} answer tokens, "
            f"{passes:.1f} passes in {self.recipe.steps} updates, beginning at {self.step}"
        )

    def _evaluate(self, final: bool) -> Acceptance:
        self.export(self.out if final else self.work / "export")
        found = self.evaluate_export(final)
        self.curve.add_held_out(self.step, self.seconds, asdict(found.of()))
        print(self.summary(found), file=sys.stderr, flush=True)
        return found

    def evaluate_export(self, final: bool) -> Acceptance:
        """Acceptance of the exported folder on held-out prompts: all of them at the end, a spread of the classes before."""
        recipe = self.recipe
        folder = self.out if final else self.work / "export"
        answers, stops = self.held_out()
        answers = answers if final else spread(answers, recipe.held_out_prompts)
        drafter = load_dotted(recipe.drafter)(self.target, recipe.drafter_options, str(folder))
        return self._accepted(drafter, answers, stops, recipe.held_out_tokens * (2 if final else 1))

    def prompt_lookup(self) -> Acceptance:
        """Of the n-gram arm on all held-out prompts: what a drafter without weights gets there."""
        return self._accepted(NgramDrafter(self.target, LOOKUP, None), *self.held_out(), 2 * self.recipe.held_out_tokens)

    def _accepted(self, drafter: Drafter, answers: list[Answer], stops: frozenset[int], limit: int) -> Acceptance:
        return held_out_acceptance(self.target, drafter, answers, self.recipe.held_out_budget, limit, stops)

    def held_out(self) -> tuple[list[Answer], frozenset[int]]:
        render, stops = renderer(self.target_folder)
        prompts = [p for p in read_prompts(ROOT / self.data.prompts) if p.split == "held_out"]
        asked = [Asked(p.prompt_id, p.content_class, p.split, 0.0, 0) for p in prompts]
        return [Answer(a, render(p.text), ()) for a, p in zip(asked, prompts, strict=True)], stops

    @staticmethod
    def summary(found: Acceptance) -> str:
        classes = sorted(set(found.classes))
        rates = " ".join(f"{rate:.3f}" for rate in found.positions())
        rows = [f"  {name:<12} {found.of(name)}" for name in classes]
        head = f"held-out acceptance length at budget {found.budget}: {found.of()}; by position {rates}"
        return "\n".join([head, *rows])

    def export(self, folder: Path) -> None:
        """The drafter as a folder in the published format, weights in bfloat16."""
        config, tensors = self.objective.export()
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: _stored(value) for name, value in tensors.items()}
        save_file(kept, folder / "model.safetensors.tmp", {"format": "pt"})
        (folder / "model.safetensors.tmp").replace(folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}, indent=2) + "\n", encoding="utf-8")

    def save(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": self.recipe.identity(),
            "step": self.step,
            "seconds": self.seconds,
            "network": self.objective.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.work / "checkpoint.tmp")
        (self.work / "checkpoint.tmp").replace(self.work / "checkpoint.pt")

    def _resume(self) -> None:
        path = self.work / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        if state["identity"] != self.recipe.identity():
            raise ValueError(f"{path}: trained by another recipe; remove {self.work} or give another `work`")
        self.objective.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def _stored(value: Tensor) -> Tensor:
    value = value.detach().contiguous()
    return value.to(torch.bfloat16) if value.is_floating_point() else value.clone()
