"""A serving of the reference engine: a process that reads requests and writes tokens, one JSON object a line.

    python -m drafters.worker --target FOLDER --slots 8 ... [--drafter drafters.ngram.NgramDrafter --draft-budget 4 ...]

In, on stdin:   {"op": "generate", "id", "prompt", "max_tokens", "stop_ids", "temperature", "top_p", "top_k", "seed"}
                {"op": "cancel", "id"} · {"op": "ask", "n", "what": "counters" | "steps" | "memory" | "resolved"}
                {"op": "ask", "n", "what": "widths" | "replay", "with": {...}}: after all requests, see drafters.serving
Out, on stdout: {"ready": {...}} once · {"tokens": [[id, tokens, drafted, accepted, finish], ...]} per iteration
                {"failed": id, "error"} · {"answer": n, "value"}

When stdin closes, however the other side ended, the process ends at once: a killed harness leaves no orphan.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any, TextIO

Message = dict[str, Any]


def main(argv: list[str] | None = None) -> None:
    """Start reading before torch is imported, so that even a start-up ends when the other side is gone."""
    args = _parser().parse_args(argv)
    out = _claim_stdout()
    inbox: Queue[Message] = Queue()
    threading.Thread(target=_read, args=(inbox,), daemon=True).start()

    from drafters.serving import build

    started = time.monotonic_ns()
    serving = build(args)
    _send(out, {"ready": {**serving.facts, "load_s": (time.monotonic_ns() - started) / 1e9}})
    _serve(serving, inbox, lambda message: _send(out, message))


def _serve(serving: Any, inbox: Queue[Message], send: Callable[[Message], None]) -> None:
    """Take what has arrived, then run one iteration; sleep only when there is nothing to do."""
    while True:
        while not serving.loop.busy or not inbox.empty():
            if reply := serving.handle(inbox.get()):
                send(reply)
        emissions = serving.loop.step()
        if emissions:
            send({"tokens": [[e.job_id, e.tokens, e.drafted, e.accepted, e.finish] for e in emissions]})


def _read(inbox: Queue[Message]) -> None:
    for line in sys.stdin:
        inbox.put(json.loads(line))
    os._exit(0)


def _claim_stdout() -> TextIO:
    """Keep stdout for messages; whatever libraries print goes to stderr, which is the log."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _send(out: TextIO, message: Message) -> None:
    try:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()
    except BrokenPipeError:
        os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="drafters.worker", description="One serving of the reference engine over stdin and stdout."
    )
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder in Hugging Face format")
    parser.add_argument("--implementation", default="drafters.dense.DenseTarget", help="dotted path of the target class")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=0, help="torch threads on a CPU; 0 takes one per physical core")
    parser.add_argument("--slots", type=int, required=True, help="requests that can run at once")
    parser.add_argument("--max-length", type=int, required=True, help="tokens of context per request")
    parser.add_argument("--prefill-chunk", type=int, required=True, help="prompt tokens per iteration")
    parser.add_argument("--verify-rule", choices=("standard", "block"), required=True)
    parser.add_argument("--graph-batch-sizes", default="", help="request counts to capture CUDA graphs for: 1,2,4")
    parser.add_argument("--drafter", help="dotted path of the drafter class; none decodes plainly")
    parser.add_argument("--draft-budget", type=int, default=0, help="drafts per verification, anchor not counted")
    parser.add_argument("--checkpoint", help="drafter weights")
    parser.add_argument("--options", type=json.loads, default={}, help="drafter options as JSON")
    return parser


if __name__ == "__main__":
    main()
