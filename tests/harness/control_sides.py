"""The two sides of a comparison for the tests of control: clean ones, and what a test changes in them."""

import json
from dataclasses import replace

from synthetic import request, serving

from harness.control import Side, compare


def rows(arm, **given):
    """Three requests of one cell, one after another."""
    spans = ((0, "a"), (300, "b"), (600, "c"))
    return [
        request([(100, 1), (200, 1)], arm=arm, serving_id=f"b0-{arm}", sent_ns=at * 1_000_000, prompt_id=name, **given)
        for at, name in spans
    ]


def side(arm, requests=None, samples=(), **given):
    return Side([serving(arm, **given)], rows(arm) if requests is None else requests, [], samples)


def clean(arm):
    return side(arm)


def cell(arm, concurrency=1, **given):
    """A cell's row; those of `rows` have the id `cell`."""
    keys = {"run_id": "r", "serving_id": f"b0-{arm}", "block": 0, "arm": arm, "cell_id": "cell", "prompt_set": "humaneval"}
    keys |= {"content_class": "code", "concurrency": concurrency, "started_ns": 0, "ended_ns": 1, "warmup_batches": 2}
    return keys | {"warmed_up": True, "counters": {"preemptions": 0}, "client_lag_p99_ms": 0.1, "invalid": []} | given


def with_cells(arm, *cells, **given):
    return replace(side(arm, **given), cells=cells)


def resolved(arm, **factors):
    told = serving(arm)["resolved"] | {name: json.dumps(value) for name, value in factors.items()}
    return {"resolved": told}


def confounders(plain, arm, concurrency=1):
    return [finding.factor for finding in compare(plain, arm, concurrency).of("confounder")]
