"""What is asked: the prompts of every cell, rendered once, before anything is launched or timed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from harness.asked import Asked
from harness.config import PromptSet, Run
from harness.rendering import load_tokenizer, render, stop_ids
from harness.workloads import Prompt, check_workload, load_set, prompt_count, select, warmup_prompts


class WorkloadPrompts:
    """Prompts of the pinned sets through the target's chat template. Raises ValueError, one line per problem."""

    def __init__(self, run: Run, tokenizer_folder: Path) -> None:
        if problems := check_workload(run):
            raise ValueError("\n".join(problems))
        self._run = run
        self._tokenizer = load_tokenizer(tokenizer_folder)
        self.stop_ids = stop_ids(tokenizer_folder, self._tokenizer)
        self._rendered: dict[tuple[str, str, int | None], Asked] = {}
        self._refuse_what_does_not_fit()

    def measured(self, prompt_set: PromptSet, concurrency: int) -> Sequence[Asked]:
        data = load_set(prompt_set.set)
        skip = self._run.workload.skip_prompts
        chosen = select(data, skip + prompt_count(self._run.protocol, concurrency), self._run.workload.seed)[skip:]
        return [self._render(prompt_set.set, prompt, prompt_set.depth, data.entry.content_class) for prompt in chosen]

    def warmup(self, prompt_set: PromptSet, count: int) -> Sequence[Asked]:
        name = "warmup" if prompt_set.depth is None else "warmup_long"
        chosen = warmup_prompts(min(count, len(load_set(name).prompts)), self._run.workload.seed, prompt_set.depth)
        prompts = [self._render(name, prompt, prompt_set.depth, prompt.content_class) for prompt in chosen]
        return list(islice(cycle(prompts), count))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without the tokens that end it and those that the engine counted and did not name (-1)."""
        return self._tokenizer.decode([token for token in token_ids if token >= 0 and token not in self.stop_ids])

    def _render(self, set_name: str, prompt: Prompt, depth: int | None, content_class: str) -> Asked:
        key = (set_name, prompt.id, depth)
        if key not in self._rendered:
            workload = self._run.workload
            found = render(prompt, self._tokenizer, workload.system_prompt, depth, workload.template_options)
            self._rendered[key] = Asked(prompt.id, content_class, found.prompt_ids, found.prompt_hash)
        return self._rendered[key]

    def _refuse_what_does_not_fit(self) -> None:
        """Render every measured prompt now, and check prompt + answer + drafts against the target's context."""
        run = self._run
        budget = max((arm.draft_budget or 0 for arm in run.arms.values()), default=0)
        for prompt_set in run.workload.sets:
            room = run.target.context - run.max_tokens(prompt_set) - budget
            for asked in self.measured(prompt_set, max(run.concurrency)):
                if len(asked.prompt_ids) > room:
                    raise ValueError(
                        f"workload.sets: prompt '{asked.prompt_id}' of '{prompt_set.set}' has {len(asked.prompt_ids)} tokens, "
                        f"target.context - max_tokens - draft_budget leaves {room}; raise target.context or lower max_tokens"
                    )
