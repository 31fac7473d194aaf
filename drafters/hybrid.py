"""`TransformersTarget`: any causal language model of transformers behind the `Target` seam, recurrent hybrids included.

This target is for breadth; `DenseTarget` is the fast path. Each slot owns its committed cache (`hybrid_state`). A pass batches
the requests that have equal real rows; unequal committed lengths are padded on the left and masked, fresh slots go apart from
slots with history. The batch is stacked anew for every pass, so a pass moves each cached row once.

Rollback. Attention rows are cropped. A recurrent state cannot be, so a verification of T rows that commits fewer either replays
the accepted rows from the state before the pass (`"replay"`: one extra pass, none when all T rows are kept) or runs row by row
and keeps the state behind every row (`"snapshot"`: T passes, T copies, commit is free). Attention-only models do neither.
Rule: a commit of any count leaves the state that a plain pass over the committed text leaves (SGLang keeps per-row states,
MLX replays: both exact).

Shape legend: R requests, G requests in one pass, T rows per request, H hidden size, M taps times H, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from drafters import hybrid_state as state
from drafters.contract import Forward, Tap
from drafters.hybrid_model import load, outputs_of, tap_points

Rollback = Literal["replay", "snapshot"]


@dataclass(frozen=True, slots=True)
class _Pending:
    """Rows that ran but are not committed: batch row `row` of a pass, its tokens, and the states behind each row if kept."""

    layers: state.Layers
    row: int
    tokens_T: Tensor
    snapshots: list[state.States]


class TransformersTarget:
    """A `Target` over a transformers model. `rollback` says how recurrent layers return to an earlier row (see above).

    Errors, one line each: FileNotFoundError or ValueError for a folder without a causal language model; ValueError for a layer
    cache that cannot be rolled back, a slot out of range, a length over `max_length`, and counts that do not fit the rows.
    """

    def __init__(
        self,
        folder: Path | str,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
        max_length: int,
        rollback: Rollback = "replay",
    ) -> None:
        self._adopt(load(Path(folder), dtype).to(device), slots, max_length, rollback)

    @classmethod
    def from_model(cls, model: Any, slots: int, max_length: int, rollback: Rollback = "replay") -> TransformersTarget:
        """Wraps a model that is already built; it is put in eval mode and stays on its device."""
        target = cls.__new__(cls)
        target._adopt(model, slots, max_length, rollback)
        return target

    def _adopt(self, model: Any, slots: int, max_length: int, rollback: Rollback) -> None:
        if slots < 1 or max_length < 1:
            raise ValueError(f"TransformersTarget: slots={slots}, max_length={max_length}: both must be at least 1")
        text = model.config.get_text_config(decoder=True)
        self.hidden_size: int = text.hidden_size
        self.num_layers: int = text.num_hidden_layers
        self.vocab_size: int = text.vocab_size
        self.slots, self.max_length, self.rollback = slots, max_length, rollback
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._model = model.eval()
        self._tapped = tap_points(model, self.num_layers)
        self._blank = state.blank(text)
        self._recurrent = state.is_recurrent(self._blank.layers)
        self._accepts = set(inspect.signature(model.forward).parameters)
        names = [name for name in ("cache", "past_key_values", "cache_params") if name in self._accepts]
        if not names:
            raise ValueError(f"{type(model).__name__}: forward takes no cache; pick another target")
        self._cache_name = names[0]
        self._committed = [self._blank] * slots
        self._pending: dict[int, _Pending] = {}

    @property
    def embedding(self) -> Tensor:
        """The raw input embedding table [V, H]; a scale that the model applies after the lookup is not in it."""
        weight: Tensor = self._model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Output projection from the state after the final norm to V logits; a soft cap or scale behind it is not applied."""
        projection: Callable[[Tensor], Tensor] = self._model.get_output_embeddings()
        return projection

    def length(self, slot: int) -> int:
        self._check_slots([slot])
        return self._committed[slot].length

    def release(self, slot: int) -> None:
        self._check_slots([slot])
        self._committed[slot] = self._blank
        self._pending.pop(slot, None)

    def memory(self) -> dict[str, int]:
        """Bytes: `weights` (shared tensors once) and `kv` held now, storage by storage; `kv_tokens`, the rows promised."""
        held = [s.layers for s in self._committed] + [p.layers for p in self._pending.values()]
        storages = [tensor.untyped_storage() for layers in held for tensor in state.tensors(layers)]
        return {
            "weights": sum(weight.numel() * weight.element_size() for weight in self._model.parameters()),
            "kv": sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()),
            "kv_tokens": self.slots * self.max_length,
        }

    @torch.no_grad()
    def forward(
        self, slots: Sequence[int], tokens_RT: Tensor, counts: Sequence[int], last_only: bool, taps: Sequence[Tap]
    ) -> Forward:
        """As the seam says. An uncommitted earlier pass of the same slot is dropped. Logits and taps of padding rows are zero.

        With `last_only` nothing is verified, so `"snapshot"` keeps no states there: prefill stays one pass.
        """
        self._check_forward(slots, tokens_RT, counts, taps)
        tokens_RT = tokens_RT.to(self.device)
        by_row = self._recurrent and self.rollback == "snapshot" and not last_only
        parts = []
        for group in self._groups(slots, counts):
            tokens_GT = tokens_RT[group, : counts[group[0]]]
            runner = self._run_by_row if by_row else self._run
            part = runner([slots[r] for r in group], tokens_GT, last_only, taps)
            parts.append((group, part))
        width = tokens_RT.shape[1]
        return Forward(
            logits_RTV=_gather([(group, part.logits_RTV) for group, part in parts], len(slots), 1 if last_only else width),
            hidden_RTM=_gather(
                [(group, part.hidden_RTM) for group, part in parts if part.hidden_RTM is not None], len(slots), width
            )
            if taps
            else None,
        )

    @torch.no_grad()
    def commit(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        self._check_commit(slots, counts)
        pending = {slot: self._pending.pop(slot) for slot in slots}
        replays: dict[int, int] = {}
        for slot, count in zip(slots, counts, strict=True):
            p, ran, before = pending[slot], len(pending[slot].tokens_T), self._committed[slot].length
            if count and count < ran and self._recurrent and not p.snapshots:
                replays[slot] = count
            elif count:
                snapshot = p.snapshots[count - 1] if p.snapshots else None
                self._committed[slot] = state.take(p.layers, p.row, before, ran, count, snapshot)
        if replays:
            self._replay(replays, pending)

    def _replay(self, counts: dict[int, int], pending: dict[int, _Pending]) -> None:
        slots = list(counts)
        for group in self._groups(slots, list(counts.values())):
            chosen = [slots[i] for i in group]
            count = counts[chosen[0]]
            self._run(chosen, torch.stack([pending[slot].tokens_T[:count] for slot in chosen]), True, ())
            self.commit(chosen, [count] * len(chosen))

    def _groups(self, slots: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
        """Positions of the call that can share a pass: equal real rows, and all or none with history."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for position, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            groups.setdefault((count, self._committed[slot].length == 0), []).append(position)
        return list(groups.values())

    def _run(self, slots: Sequence[int], tokens_GT: Tensor, last_only: bool, taps: Sequence[Tap]) -> Forward:
        """One pass over equal rows; leaves its pending."""
        committed = [self._committed[slot] for slot in slots]
        cache = state.stack(committed)
        result = self._call(cache, [s.length for s in committed], tokens_GT, last_only, taps)
        for row, slot in enumerate(slots):
            self._pending[slot] = _Pending(cache.layers, row, tokens_GT[row], [])
        return result

    def _run_by_row(self, slots: Sequence[int], tokens_GT: Tensor, last_only: bool, taps: Sequence[Tap]) -> Forward:
        """The same rows, one pass each, with the recurrent states kept behind every row."""
        committed = [self._committed[slot] for slot in slots]
        cache = state.stack(committed)
        results, snapshots = [], []
        for t in range(tokens_GT.shape[1]):
            lengths = [s.length + t for s in committed]
            results.append(self._call(cache, lengths, tokens_GT[:, t : t + 1], last_only, taps))
            snapshots.append(state.states(cache.layers))
        for row, slot in enumerate(slots):
            self._pending[slot] = _Pending(cache.layers, row, tokens_GT[row], snapshots)
        hidden = [result.hidden_RTM for result in results if result.hidden_RTM is not None]
        return Forward(torch.cat([result.logits_RTV for result in results], 1), torch.cat(hidden, 1) if taps else None)

    def _call(self, cache: Any, lengths: list[int], tokens_GT: Tensor, last_only: bool, taps: Sequence[Tap]) -> Forward:
        """The model on rows behind `lengths`; only what it accepts is passed (names differ by model and release)."""
        behind_G1 = torch.tensor(lengths, device=self.device)[:, None]
        rows = tokens_GT.shape[1]
        inputs: dict[str, Any] = {self._cache_name: cache}
        if "position_ids" in self._accepts:
            inputs["position_ids"] = behind_G1 + torch.arange(rows, device=self.device)
        if len(set(lengths)) > 1 and state.has_rows(cache.layers):
            columns = torch.arange(max(lengths) + rows, device=self.device)
            inputs["attention_mask"] = (columns >= max(lengths) - behind_G1).long()
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = int(last_only)
        with outputs_of([self._tapped[tap] for tap in taps]) as hidden:
            logits = self._model(input_ids=tokens_GT, use_cache=True, **inputs).logits
        return Forward(logits[:, -1:] if last_only else logits, torch.cat(hidden, -1) if taps else None)

    def _check_slots(self, slots: Sequence[int]) -> None:
        if wrong := [slot for slot in slots if not 0 <= slot < self.slots]:
            raise ValueError(
                f"TransformersTarget: slot {wrong[0]} is not in 0..{self.slots - 1}; raise `slots` or pass a held slot"
            )
        if len(set(slots)) < len(slots):
            raise ValueError(f"TransformersTarget: slots {list(slots)} name one twice; pass each slot once per call")

    def _check_forward(self, slots: Sequence[int], tokens_RT: Tensor, counts: Sequence[int], taps: Sequence[Tap]) -> None:
        self._check_slots(slots)
        requests, rows = tokens_RT.shape
        if not len(slots) == len(counts) == requests > 0:
            raise ValueError(f"forward: {len(slots)} slots, {len(counts)} counts, {requests} rows of tokens; pass one of each")
        for slot, count in zip(slots, counts, strict=True):
            if not 1 <= count <= rows:
                raise ValueError(f"forward: slot {slot} counts {count} real rows of {rows}; pass 1..{rows}")
            if (total := self._committed[slot].length + count) > self.max_length:
                raise ValueError(f"forward: slot {slot} would hold {total} rows of {self.max_length}; raise `max_length`")
        if wrong := [tap for tap in taps if tap not in self._tapped]:
            raise ValueError(f"forward: tap {wrong[0]!r} is no layer output; pass 0..{self.num_layers - 1} or 'final'")

    def _check_commit(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        self._check_slots(slots)
        if len(slots) != len(counts):
            raise ValueError(f"commit: {len(slots)} slots but {len(counts)} counts; pass one of each")
        for slot, count in zip(slots, counts, strict=True):
            if slot not in self._pending:
                raise ValueError(f"commit: slot {slot} has no rows to commit; call forward first")
            if not 0 <= count <= len(ran := self._pending[slot].tokens_T):
                raise ValueError(f"commit: slot {slot} would keep {count} of {len(ran)} rows; pass 0..{len(ran)}")


def _gather(parts: Sequence[tuple[list[int], Tensor]], requests: int, width: int) -> Tensor:
    """The parts of each pass at their requests' positions, [R, width, ...]; rows that nobody ran are zero."""
    positions, first = parts[0]
    if len(positions) == requests and first.shape[1] == width:
        return first
    whole = first.new_zeros(requests, width, first.shape[2])
    for group, part in parts:
        whole[torch.tensor(group, device=whole.device), : part.shape[1]] = part
    return whole
