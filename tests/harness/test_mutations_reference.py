"""Secret changes of one arm of the reference engine, by what its worker resolves: the worker's own code, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import request, serving
from transformers import LlamaConfig, LlamaForCausalLM

from drafters.serving import build
from drafters.worker import _parser
from harness.control import Side, compare

BASE = {"dtype": "float32", "device": "cpu", "threads": "1", "slots": "2", "max-length": "64", "prefill-chunk": "16"}
NGRAM = {"drafter": "drafters.ngram.NgramDrafter", "draft-budget": "3", "options": '{"min_n": 1, "max_n": 3}'}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, **heads)
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def side(target: Path, arm: str, **changed: str) -> Side:
    """An arm whose worker was launched with this base command, secretly changed."""
    flags = {**BASE, "verify-rule": "standard", **({} if arm.startswith("plain") else NGRAM)}
    flags |= {name.replace("_", "-"): value for name, value in changed.items()}
    argv = ["--target", str(target), *(word for name, value in flags.items() for word in (f"--{name}", value))]
    told: dict[str, Any] = {"engine": "reference", **build(_parser().parse_args(argv)).tell_resolved()}
    rows = [request([(100, 1), (200, 39)], arm=arm, serving_id=f"b0-{arm}")]
    return Side([serving(arm, resolved={name: json.dumps(value) for name, value in told.items()})], rows, [], [])


@pytest.mark.parametrize("arm", ["ngram", "plain2"])
def test_an_honest_arm_is_controlled(target: Path, arm: str) -> None:
    found = compare(side(target, "plain"), side(target, arm), 1)
    assert (found.verdict, found.findings_that_count) == ("CONTROLLED", ())


@pytest.mark.parametrize(
    ("flag", "value", "factor"),
    [
        ("slots", "1", "max_running_requests"),
        ("dtype", "bfloat16", "kv_dtype"),
        ("max_length", "32", "context_limit"),
        ("prefill_chunk", "8", "prefill_chunk"),
        ("verify_rule", "block", "verify_rule"),
    ],
)
def test_a_secret_change_of_the_worker_is_caught(target: Path, flag: str, value: str, factor: str) -> None:
    honest, changed = side(target, "ngram"), side(target, "ngram", **{flag: value})
    assert factor in [finding.factor for finding in compare(honest, changed, 1).of("confounder")]


def test_graphs_that_are_off_in_one_arm_are_caught_and_their_number_is_implied() -> None:
    told = serving("plain")["resolved"]
    plain = Side([serving("plain", resolved=told | {"cuda_graphs": '"decode"', "graph_count": "3"})], [request()], [], [])
    arm = serving("ngram")["resolved"] | {"cuda_graphs": '"decode"', "graph_count": "6"}
    rows = [request(arm="ngram")]
    found = compare(plain, Side([serving("ngram", resolved=arm)], rows, [], []), 1)
    assert [(f.factor, f.kind) for f in found.findings] == [("graph_count", "implied")]
    off = compare(plain, Side([serving("ngram", resolved=arm | {"cuda_graphs": '"off"'})], rows, [], []), 1)
    assert [f.factor for f in off.of("confounder")] == ["cuda_graphs"]
