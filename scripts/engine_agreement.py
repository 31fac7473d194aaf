"""Does the same drafter accept the same in the reference engine and in llama.cpp? Exit code 1 where it does not.

    python scripts/engine_agreement.py FOLDER [--arms ngram,eagle3] [--prompts 4] [--tokens 64] [--budget 4]

Both engines answer the same prompts, greedily, one at a time, from the same numbers: the embedded target in float32 (FOLDER
holds it as GGUF, 540 MB, and the exported drafters; made if missing), float32 cache, float32 drafter. Acceptance length is
`harness.metrics.ledger.acceptance_length`, its 95 % interval clustered by prompt. The two must agree within 5 %: an exporter
that permutes the wrong rows, a tap that is one layer off or another rule of matching changes acceptance, and nothing else
would tell.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.asked import Asked
from harness.compose import compose_run, load_dotted
from harness.config import Run
from harness.engines.base import Chunk, Engine, Request
from harness.engines.llama_cpp_plan import gguf_path
from harness.ledger import ledger
from harness.prompts import WorkloadPrompts
from harness.stats.interval import ratio_interval

WITHIN = 0.05
RIGS = {"reference": "cpu_smollm2", "llama.cpp": "cpu_smollm2_llamacpp"}


@dataclass(frozen=True, slots=True)
class Answers:
    """Per prompt, in order: delivered token ids, tokens of speculating steps (accepted + steps), and those steps."""

    ids: list[tuple[int, ...]]
    made: list[int]
    steps: list[int]

    @property
    def length(self) -> float:
        return sum(self.made) / sum(self.steps) if sum(self.steps) else float("nan")

    def __str__(self) -> str:
        told = [(made, steps) for made, steps in zip(self.made, self.steps, strict=True) if steps]
        if len(told) < 2:
            return "a draft in fewer than two answers; ask for more --prompts or --tokens"
        interval = ratio_interval(*(np.array(column, dtype=float) for column in zip(*told, strict=True)))
        return f"{self.length:.4f} [{interval.low:.4f}, {interval.high:.4f}] (n={len(told)} prompts, {sum(self.steps)} steps)"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arms", default="ngram,eagle3,dflash,dflash2,dspark", type=lambda text: text.split(","))
    parser.add_argument("--prompts", default=4, type=int, help="of each of the six prompt sets")
    parser.add_argument("--tokens", default=64, type=int, help="at most, per answer")
    parser.add_argument("--budget", default=4, type=int)
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    apart = [arm for arm in args.arms if not agrees(arm, args)]
    print(f"not within {WITHIN:.0%}: {', '.join(apart)}" if apart else f"all within {WITHIN:.0%}")
    return 1 if apart else 0


def agrees(arm: str, args: argparse.Namespace) -> bool:
    """Measure one arm in both engines and print it."""
    answers = {}
    for engine, run in runs(arm, args).items():
        answers[engine] = asyncio.run(ask(run, arm, args.folder / f"{engine}-{arm}.log"))
        print(f"{arm:8} {engine:10} {answers[engine]}", flush=True)
    ours, theirs = answers["reference"], answers["llama.cpp"]
    same = sum(a == b for a, b in zip(ours.ids, theirs.ids, strict=True))
    difference = theirs.length / ours.length - 1
    print(f"{arm:8} difference {difference:+.2%}; {same} of {len(ours.ids)} answers are the same tokens", flush=True)
    return abs(difference) <= WITHIN  # false where nothing was drafted


def runs(arm: str, args: argparse.Namespace) -> Mapping[str, Run]:
    """The two rigs, made equal in numbers, prompts and sampler."""
    shared = [
        "protocol=smoke",
        f"protocol.prompts_per_set={args.prompts}",
        f"protocol.max_tokens_cap={args.tokens}",
        f"draft_budget={args.budget}",
        "machine.threads=1",
        *(["arm@arms.ngram=ngram_simple"] if arm == "ngram" else []),
    ]
    reference, served = (with_arm(rig, arm, shared) for rig in RIGS.values())
    target = made(args.folder / "target.gguf", "drafters.gguf_float32", str(gguf_path(served)))
    numbers = [f"engine.flags.gguf={target}", "engine.kv_dtype=float32"]
    if checkpoint := reference.arms[arm].checkpoint:
        call = ("drafters.export_gguf", checkpoint.location, str(target))
        (args.folder / f"{arm}.gguf").unlink(missing_ok=True)  # of another training, maybe
        drafter = made(args.folder / f"{arm}.gguf", *call, last=("--dtype", "float32"))
        numbers += [f"arms.{arm}.checkpoint.location={drafter}"]
    return {"reference": reference, "llama.cpp": with_arm(RIGS["llama.cpp"], arm, [*shared, *numbers])}


def with_arm(rig: str, arm: str, overrides: list[str]) -> Run:
    """A rig that has the arm, be it the rig's own or added."""
    added = [] if arm in compose_run(rig).run.arms else [f"+arm@arms.{arm}={arm}"]
    return compose_run(rig, [*added, *overrides]).run


def made(out: Path, module: str, *words: str, last: Sequence[str] = ()) -> Path:
    if not out.is_file():
        subprocess.run([sys.executable, "-m", module, *words, str(out), *last], check=True)
    return out.resolve()


async def ask(run: Run, arm: str, log: Path) -> Answers:
    adapter: type[Engine] = load_dotted(run.engine.adapter)
    if missing := adapter.plan(run, run.arms[arm]).missing:
        raise SystemExit("\n".join(missing))
    prompts = WorkloadPrompts(run, adapter.tokenizer_folder(run))
    asked = [(found, s) for s in run.workload.sets for found in prompts.measured(s, 1)]
    engine = adapter(run, run.arms[arm], log)
    answers = Answers([], [], [])
    try:
        await engine.launch()
        for prompt, prompt_set in asked:
            request = _request(run, prompt, run.max_tokens(prompt_set), prompts.stop_ids)
            chunks: list[Chunk] = [chunk async for chunk in engine.generate(request)]
            told = ledger(request.request_id, chunks, run.arms[arm].draft_budget, tells_steps=True)
            answers.ids.append(tuple(token for chunk in chunks for token in chunk.token_ids))
            answers.steps.append(told.steps_with_draft or 0)
            answers.made.append((told.accepted or 0) + (told.steps_with_draft or 0))
    finally:
        await engine.stop()
    return answers


def _request(run: Run, asked: Asked, limit: int, stops: tuple[int, ...]) -> Request:
    return Request(asked.prompt_id, asked.prompt_ids, limit, stops, False, run.sampler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
