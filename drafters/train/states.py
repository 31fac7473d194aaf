"""Hidden states of the target for every training sequence: what drafters learn to read.

Generation computes them anyway, so a `Recorder` rides along as a drafter that proposes nothing. Sequences that were generated
without one get their states from one teacher-forced pass. Either way a sequence has one file, bfloat16, written in one step.

Shape legend: R requests, T rows per request, N rows of a sequence (all its tokens but the last), Z stored taps, H hidden size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from drafters.contract import Draft, Tap, Target
from drafters.train.store import Answer


class Recorder:
    """A `contract.Drafter` that proposes nothing and keeps what it observes; `done` holds the released sequences in order."""

    def __init__(self, taps: tuple[Tap, ...]) -> None:
        self.taps = taps
        self.done: list[Tensor] = []
        self._rows: dict[int, list[Tensor]] = {}

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        assert hidden_RTM is not None
        for slot, hidden_TM, count in zip(slots, hidden_RTM, counts, strict=True):
            self._rows.setdefault(slot, []).append(hidden_TM[:count].to(torch.bfloat16))

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        return None

    def release(self, slot: int) -> None:
        """The states of an ended sequence, [N, Z, H], go to `done`."""
        self.done.append(torch.cat(self._rows.pop(slot)).unflatten(-1, (len(self.taps), -1)))

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "state": sum(rows.nbytes for kept in self._rows.values() for rows in kept)}


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The folder of state files of one data set, and the taps that they hold."""

    folder: Path
    taps: tuple[Tap, ...]

    def path(self, answer: Answer) -> Path:
        asked = answer.asked
        return self.folder / f"{asked.prompt_id.replace('/', '-')}-{asked.temperature:g}-{asked.seed}.safetensors"

    def write(self, answer: Answer, states_NZH: Tensor) -> None:
        """Raises ValueError when there is not one row for every token but the last."""
        if len(states_NZH) != len(answer.prompt_ids) + len(answer.output_ids) - 1:
            raise ValueError(f"{answer.asked.prompt_id}: {len(states_NZH)} rows of states do not fit its tokens")
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.path(answer).with_suffix(f".{os.getpid()}.tmp")
        save_file({"states": states_NZH.contiguous()}, scratch, {"taps": repr(self.taps)})
        scratch.replace(self.path(answer))

    def read(self, answer: Answer, wanted: Sequence[Tap]) -> Tensor | None:
        """States [N, len(wanted), H] in bfloat16; null when the sequence has no file, or one of other taps."""
        try:
            with safe_open(self.path(answer), framework="pt") as file:
                if (file.metadata() or {}).get("taps") != repr(self.taps):
                    return None
                states: Tensor = file.get_tensor("states")
        except (FileNotFoundError, SafetensorError):
            return None
        if len(states) != len(answer.prompt_ids) + len(answer.output_ids) - 1:
            return None
        chosen: Tensor = states[:, [self.taps.index(tap) for tap in wanted]]
        return chosen


@torch.inference_mode()
def teacher_forced(target: Target, answer: Answer, taps: Sequence[Tap], chunk: int = 256) -> Tensor:
    """States [N, Z, H] of a whole sequence in bfloat16, from slot 0 of a target that nothing else uses."""
    tokens = [*answer.prompt_ids, *answer.output_ids][:-1]
    rows = []
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        out = target.forward([0], torch.tensor([part], device=target.device), [len(part)], True, taps)
        target.commit([0], [len(part)])
        assert out.hidden_RTM is not None
        rows.append(out.hidden_RTM[0].to(torch.bfloat16))
    target.release(0)
    states_NZH: Tensor = torch.cat(rows).unflatten(-1, (len(taps), -1)).cpu()
    return states_NZH
