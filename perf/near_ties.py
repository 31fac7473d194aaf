"""How far the target's logits move when nothing but the shape of the pass changes: what a near tie is, measured.

    python -m perf.near_ties [--texts 12] [--tokens 64] [--dtype float32 bfloat16 float16]

Each text is decoded greedily, one row a pass, as plain does. Then the same tokens go through the same target in passes of other
widths, as verifications of 1 to 16 drafts and the gate's own reading (64 rows) do, and in a batch of all texts. Per position,
the *shift* is the most by which the gap between two of the eight best tokens differs from the one-row pass. A token that
another shape would choose lies at most one shift below the best, so the largest shift is what arithmetic alone can do here, and
`harness.gates.identity.NEAR_TIE` must not be below it. Another model, device or kernel may do more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from drafters.contract import Target
from drafters.dense import DenseTarget
from perf.timing import embedded_folder, prompts

PROMPT_TOKENS = 96
WIDTHS = (2, 3, 5, 8, 17, 64)
CANDIDATES = 8


@torch.inference_mode()
def decoded(target: Target, prompt: Sequence[int], new: int) -> tuple[list[int], Tensor]:
    """The greedy answer of `new` tokens, one row a pass, and the logits [new, V] that chose every token but the first."""
    tokens, kept = [int(_filled(target, 0, prompt).argmax())], []
    for _ in range(new):
        kept.append(_pass(target, [0], [[tokens[-1]]])[0, 0])
        tokens.append(int(kept[-1].argmax()))
    target.release(0)
    return tokens[:-1], torch.stack(kept)


@torch.inference_mode()
def read_again(target: Target, prompt: Sequence[int], answer: Sequence[int], width: int) -> Tensor:
    """Logits [len(answer), V] of the same tokens in passes of `width` rows."""
    _filled(target, 0, prompt)
    parts = [_pass(target, [0], [list(answer[at : at + width])])[0] for at in range(0, len(answer), width)]
    target.release(0)
    return torch.cat(parts)


@torch.inference_mode()
def read_together(target: Target, texts: Sequence[tuple[Sequence[int], Sequence[int]]], width: int) -> Tensor:
    """Logits [texts, length, V] of all texts in one batch, in passes of `width` rows a request."""
    slots = list(range(len(texts)))
    for slot, (prompt, _) in zip(slots, texts, strict=True):
        _filled(target, slot, prompt)
    length = len(texts[0][1])
    parts = [_pass(target, slots, [list(a[at : at + width]) for _, a in texts]) for at in range(0, length, width)]
    for slot in slots:
        target.release(slot)
    return torch.cat(parts, dim=1)


def shifts(one_NV: Tensor, other_NV: Tensor) -> Tensor:
    """Per position, the most by which the gap between two of the best tokens (by `one`) moves between two readings [N]."""
    moved_NC = (other_NV - one_NV).gather(1, one_NV.topk(CANDIDATES).indices)
    return moved_NC.amax(1) - moved_NC.amin(1)


def _filled(target: Target, slot: int, prompt: Sequence[int]) -> Tensor:
    out = target.forward([slot], torch.tensor([list(prompt)]), [len(prompt)], True, ())
    target.commit([slot], [len(prompt)])
    return out.logits_RTV[0, 0].float()


def _pass(target: Target, slots: Sequence[int], rows: Sequence[list[int]]) -> Tensor:
    counts = [len(row) for row in rows]
    out = target.forward(slots, torch.tensor(rows), counts, False, ())
    target.commit(slots, counts)
    return out.logits_RTV.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    folder = embedded_folder()
    asked = prompts(folder, args.texts, PROMPT_TOKENS)
    for name in args.dtype:
        target = DenseTarget(folder, getattr(torch, name), torch.device("cpu"), args.texts, PROMPT_TOKENS + args.tokens)
        _measure(name, target, asked, args.tokens)


def _measure(name: str, target: Target, asked: Sequence[Sequence[int]], new: int) -> None:
    plain = [decoded(target, prompt, new) for prompt in asked]
    one_NV = torch.cat([logits for _, logits in plain])
    for width in WIDTHS:
        again = [read_again(target, prompt, answer, width) for prompt, (answer, _) in zip(asked, plain, strict=True)]
        _print(name, f"{width} rows", one_NV, torch.cat(again))
    for width in (1, 5):
        texts = [(prompt, answer) for prompt, (answer, _) in zip(asked, plain, strict=True)]
        _print(name, f"{width} rows, {len(texts)} requests", one_NV, read_together(target, texts, width).flatten(0, 1))


def _print(name: str, shape: str, one_NV: Tensor, other_NV: Tensor) -> None:
    moved = shifts(one_NV, other_NV)
    median, high = torch.quantile(moved, torch.tensor([0.5, 0.99])).tolist()
    flips = int((one_NV.argmax(1) != other_NV.argmax(1)).sum())
    tail = f"{flips} of {len(moved)} choices differ"
    print(
        f"{name:9} {shape:22} shift: median {median:.2g}, p99 {high:.2g}, largest {float(moved.max()):.2g}; {tail}", flush=True
    )


if __name__ == "__main__":
    main()
