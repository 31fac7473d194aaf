"""On-policy training data: the target's own answers to the training prompts, through our own loop.

python -m drafters.train.data data/smollm2_135m_620k.yaml                start, or go on where the last process ended
python -m drafters.train.data data/smollm2_135m_620k.yaml --worker 0/2   every second shard, for two processes on two cores

A drafter that learns from what its target says accepts more than one that learns from text (0.405 against 0.280 full accuracy
in the ablation behind the DSpark port of `speculators`, its pull request 677), so nothing but target output is stored.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml

from drafters.checkpoint import checkpoint_hash, resolve_target
from drafters.contract import Tap, Target
from drafters.loop import Job, Loop
from drafters.sampling import SamplingParams
from drafters.serving import load_dotted
from drafters.train.prompts import ROOT, Prompt, read_prompts
from drafters.train.states import Recorder, StateFiles
from drafters.train.store import Answer, Asked, Store

Render = Callable[[str], tuple[int, ...]]
_REPORT_S = 30.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to generate; `data/smollm2_135m_620k.yaml` explains the fields."""

    target: str
    prompts: str
    out: str
    slots: int
    context: int
    max_tokens: int
    sampled_share: float
    temperature: float
    passes: int
    shard: int
    states: str
    taps: tuple[Tap, ...]

    @classmethod
    def read(cls, path: Path) -> Recipe:
        found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        expected = {field.name for field in fields(cls)}
        if wrong := sorted(expected ^ set(found)):
            raise ValueError(f"{path}: keys {wrong} are missing or unknown; the keys are {sorted(expected)}")
        return cls(**found | {"taps": tuple(found["taps"])})

    @property
    def state_files(self) -> StateFiles:
        return StateFiles(ROOT / self.states, self.taps)


def plan(prompts: Sequence[Prompt], recipe: Recipe) -> list[list[Asked]]:
    """The sequences of every shard. A shard belongs to one pass, so raising `passes` only appends shards."""
    shards: list[list[Asked]] = []
    for number in range(recipe.passes):
        asked = [
            Asked(p.prompt_id, p.content_class, p.split, _temperature(p, number, recipe), number)
            for p in prompts
            if number == 0 or p.split == "train"
        ]
        shards += [asked[i : i + recipe.shard] for i in range(0, len(asked), recipe.shard)]
    return shards


def _temperature(prompt: Prompt, number: int, recipe: Recipe) -> float:
    sampled = number > 0 or (prompt.split == "train" and _number(prompt.prompt_id) % 1000 < 1000 * recipe.sampled_share)
    return recipe.temperature if sampled else 0.0


def _number(text: str) -> int:
    """A number below 2^48 that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def job(asked: Asked, prompt_ids: tuple[int, ...], max_tokens: int, stops: frozenset[int]) -> Job:
    params = SamplingParams(asked.temperature, 1.0, 0, _number(f"{asked.prompt_id} {asked.seed}"))
    return Job(json.dumps(asked.key), prompt_ids, max_tokens, stops, params)


def generate(
    loop: Loop,
    work: Iterable[tuple[Asked, tuple[int, ...]]],
    max_tokens: int,
    stops: frozenset[int],
    states: StateFiles | None = None,
) -> Iterator[Answer]:
    """Answers as they end. Every slot is refilled at once, across the borders of shards: a half-empty batch costs the same.

    With `states`, and a `Recorder` in the loop, the hidden states of an answer are on disk before the answer is yielded.
    """
    waiting = iter(work)
    asked_of: dict[str, tuple[Asked, tuple[int, ...]]] = {}
    output: dict[str, list[int]] = {}
    while True:
        for asked, prompt_ids in islice(waiting, loop.target.slots - len(output)):
            request = job(asked, prompt_ids, max_tokens, stops)
            asked_of[request.job_id], output[request.job_id] = (asked, prompt_ids), []
            loop.submit(request)
        if not loop.busy:
            return
        for emission in loop.step():
            output[emission.job_id] += emission.tokens
            if emission.finish:
                answer = Answer(*asked_of.pop(emission.job_id), tuple(output.pop(emission.job_id)))
                if states is not None and isinstance(loop.drafter, Recorder):
                    states.write(answer, loop.drafter.done.pop(0))  # slots are released in the order of emissions
                yield answer
        loop.records.clear()


def fill(
    store: Store,
    shards: Mapping[int, Sequence[Asked]],
    text_of: Mapping[str, str],
    render: Render,
    loop: Loop,
    max_tokens: int,
    stops: frozenset[int],
    report: Callable[[Answer], None],
    states: StateFiles | None = None,
) -> None:
    """Generate what the store lacks of these shards, and write every shard as its last sequence ends."""
    shard_of = {a.key: number for number, asked in shards.items() for a in asked}
    missing: dict[int, int] = {}
    for number, asked in shards.items():
        missing[number] = sum(a.key not in store.pending for a in asked)
        if not missing[number]:
            store.finish(number, asked)
    todo = [
        a for asked in _by_length(shards, text_of) for a in asked if missing[shard_of[a.key]] and a.key not in store.pending
    ]
    for answer in generate(loop, ((a, render(text_of[a.prompt_id])) for a in todo), max_tokens, stops, states):
        store.add(answer)
        report(answer)
        number = shard_of[answer.asked.key]
        missing[number] -= 1
        if not missing[number]:
            store.finish(number, shards[number])


def _by_length(shards: Mapping[int, Sequence[Asked]], text_of: Mapping[str, str]) -> Iterator[list[Asked]]:
    """Each shard by length of prompt, up and down in turn: attention reads every slot as far as the longest one reaches."""
    for turn, asked in enumerate(shards.values()):
        yield sorted(asked, key=lambda a: len(text_of[a.prompt_id]), reverse=turn % 2 == 1)


class Progress:
    """A line every half minute: sequences, tokens, speed, time to go."""

    def __init__(self, sequences: int, total: int) -> None:
        self._before, self._total = total - sequences, total
        self._started = self._shown = time.monotonic()
        self._sequences = self._tokens = 0

    def __call__(self, answer: Answer) -> None:
        self._sequences += 1
        self._tokens += len(answer.output_ids)
        now = time.monotonic()
        if now - self._shown >= _REPORT_S or self._before + self._sequences == self._total:
            self._shown, spent = now, now - self._started
            left = (self._total - self._before - self._sequences) * spent / self._sequences
            print(
                f"{self._before + self._sequences} of {self._total} sequences; here {self._tokens} tokens in {spent:.0f} s, "
                f"{self._tokens / spent:.0f} tokens/s; {left / 3600:.1f} h to go",
                file=sys.stderr,
                flush=True,
            )


def renderer(folder: Path) -> tuple[Render, frozenset[int]]:
    """The chat template of the target as a function of the user's text, and the tokens that end an answer."""
    from transformers import AutoTokenizer  # seconds to import, and tests do without

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def render(text: str) -> tuple[int, ...]:
        messages = [{"role": "user", "content": text}]
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tuple(tokenizer.encode(whole, add_special_tokens=False))  # the template writes BOS itself

    path = folder / "generation_config.json"
    ends = json.loads((path if path.is_file() else folder / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
    ids = ends if isinstance(ends, list) else [ends]
    return render, frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def _prompts_hash(prompts: Sequence[Prompt]) -> str:
    return hashlib.sha256(json.dumps([[p.prompt_id, p.split, p.text] for p in prompts]).encode()).hexdigest()


def run(recipe: Recipe, worker: int, workers: int, threads: int) -> None:
    """Generate this worker's share of the recipe."""
    torch.set_num_threads(threads)
    spec = yaml.safe_load((ROOT / recipe.target).read_text(encoding="utf-8"))
    folder = resolve_target(spec["source"], spec["location"], spec["file"], spec["revision"], spec["sha256"])
    prompts = read_prompts(ROOT / recipe.prompts)
    identity: dict[str, str | int] = {
        "target": spec["name"],
        # The pin, not a hash of the folder: a folder that another version of a library wrote holds the same weights.
        "weights": spec["sha256"] or spec["revision"] or checkpoint_hash(folder),
        "dtype": spec["dtype"],
        "prompts_sha256": _prompts_hash(prompts),
        "max_tokens": recipe.max_tokens,
    }
    store = Store(ROOT / recipe.out, identity, f"{worker}of{workers}")
    mine = {number: asked for number, asked in enumerate(plan(prompts, recipe)) if number % workers == worker}
    shards = {number: asked for number, asked in mine.items() if not store.path(number).exists()}
    left = sum(a.key not in store.pending for asked in shards.values() for a in asked)
    total = sum(map(len, mine.values()))
    target: Target = load_dotted(spec["implementation"])(
        folder, getattr(torch, spec["dtype"]), torch.device("cpu"), recipe.slots, recipe.context
    )
    render, stops = renderer(folder)
    print(f"{left} of {total} sequences to generate into {store.folder} (process {os.getpid()})", file=sys.stderr, flush=True)
    loop = Loop(target, Recorder(recipe.taps), 0, "standard", recipe.context)
    text_of = {p.prompt_id: p.text for p in prompts}
    fill(store, shards, text_of, render, loop, recipe.max_tokens, stops, Progress(left, total), recipe.state_files)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--worker", default="0/1", help="i/n: take every n-th shard, beginning with the i-th")
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads; one process per core is faster than more threads"
    )
    options = parser.parse_args(arguments)
    worker, workers = map(int, options.worker.split("/"))
    try:
        run(Recipe.read(options.recipe), worker, workers, options.threads)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
