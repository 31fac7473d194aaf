"""The model card of an exported drafter: what it is, what it learned from, how well it did, and how to do it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drafters.train.evaluate import Acceptance

if TYPE_CHECKING:
    from drafters.train.fit import Training

_CARD = """# {name} drafter for {target}

Trained by `python -m drafters.train {name}` from the recipe `drafters/train/recipes/{name}.yaml` of this repository.
{shared} the target's and not stored. Weights: {weights:.2f} M in bfloat16, {bytes:.1f} MB.

| | |
|---|---|
| data | {sequences} sequences of the target's own output, {tokens} answer tokens (`{data}`) |{start}
| updates | {steps} of {batch} sequences ({passes:.1f} passes), {minutes:.0f} min on {threads} CPU thread(s), seed {seed} |
| final loss | {loss:.3f} nat, mean of the last {rows_of_loss} rows of the curve |

Held-out acceptance length (tokens per verification, bonus included), greedy, budget {budget}, up to {limit} new tokens; 95 %
intervals by resampling prompts. The prompts share no template, topic or module with the training prompts.

| content | acceptance length | low | high | prompts | steps | prompt lookup |
|---|---|---|---|---|---|---|
{rows}

Prompt lookup: tokens per verification of the n-gram arm on the same prompts, steps without a draft included. It has no
weights, and is the bar.

Share accepted by position, given the position before: {positions}.

![learning curve](curve.png)

On the way the curve's acceptance is of {some} of these prompts and {short} new tokens; its last point is the table's.

Evaluated again by `python -m drafters.train.evaluate {name}`.
"""


def write_card(training: Training, found: Acceptance, lookup: Acceptance) -> None:
    """README.md and curve.png beside the weights. `lookup` is what prompt lookup gets on the same prompts."""
    recipe, out = training.recipe, training.out
    training.curve.draw(f"{recipe.name} for {training.target_name}", out / "curve.png")
    rows = "\n".join(_row(name, found, lookup) for name in (None, *sorted(set(found.classes))))
    last = [float(row["loss"]) for row in training.curve.read("curve.csv")[-5:]]
    text = _CARD.format(
        name=recipe.name,
        target=training.target_name,
        shared="The embedding is" if "d2t" in training.objective.export()[1] else "Embedding and head are",
        weights=sum(t.numel() for t in training.objective.export()[1].values() if t.is_floating_point()) / 1e6,
        bytes=(out / "model.safetensors").stat().st_size / 1e6,
        sequences=len(training.sequences.answers),
        tokens=training.tokens,
        data=training.data.out,
        start=start_row(recipe.initial),
        steps=recipe.steps,
        batch=recipe.batch,
        passes=recipe.steps * recipe.batch / len(training.sequences.answers),
        minutes=training.seconds / 60,
        threads=recipe.threads,
        seed=recipe.seed,
        loss=sum(last) / max(len(last), 1),
        rows_of_loss=len(last),
        budget=found.budget,
        some=recipe.held_out_prompts,
        short=recipe.held_out_tokens,
        limit=2 * recipe.held_out_tokens,
        rows=rows,
        positions=", ".join(f"{rate:.3f}" for rate in found.positions()),
    )
    (out / "README.md").write_text(text, encoding="utf-8")


def _row(content: str | None, found: Acceptance, lookup: Acceptance) -> str:
    i, bar = found.of(content), lookup.of(content).value
    cells = (content or "all", f"{i.value:.3f}", f"{i.low:.3f}", f"{i.high:.3f}", i.prompts, i.steps, f"{bar:.3f}")
    return f"| {' | '.join(map(str, cells))} |"


def start_row(initial: str | None) -> str:
    """The row of a drafter that was trained already when this training began, or nothing."""
    return (
        "" if initial is None else f"\n| start | the trained drafter in `{initial}`; the updates below come on top of its own |"
    )
