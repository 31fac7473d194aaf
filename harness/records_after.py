"""Tables of what is looked at once a serving's cells are measured: nothing in them was running while anything was timed."""

from __future__ import annotations

import pyarrow as pa

from harness.records import REQUESTS, SERVINGS, Column, Table

_I64, _STR = pa.int64(), pa.string()
_KEYS = SERVINGS.columns[:4]  # run, serving, block, arm
_REQUEST = (*REQUESTS.columns[:8], *(c for c in REQUESTS.columns if c.name in ("request_id", "prompt_id")))
REQUEST_KEYS = tuple(column.name for column in _REQUEST)

WIDTHS = Table(
    "widths",
    "One row per timed pass of the width sweep: the target alone, in a serving of plain, over the texts that it had served.",
    (
        *_KEYS,
        Column("requests", _I64, "requests in the batch"),
        Column("width", _I64, "rows of each request: 1 is plain decoding, K + 1 a verification of K drafts"),
        Column("context_tokens", _I64, "committed tokens over the batch", "tokens"),
        Column("round", _I64, "round of the sweep, from 0; the widths take turns in each"),
        Column("verify_ns", _I64, "time in the target", "ns"),
    ),
)

REPLAYS = Table(
    "replays",
    "One row per request that was read again by teacher forcing: prompt and delivered tokens in one pass of the target.",
    (
        *_REQUEST,
        Column("replayed_by", _STR, "serving that read it again: its own, or where it differs from plain perhaps plain's"),
        Column("deficits", pa.list_(pa.float32()), "per delivered token: best logit less this token's, 0 where it is the best"),
        Column("gaps", pa.list_(pa.float32()), "per delivered token: best logit less the second best"),
        Column("steps_with_draft", _I64, "S as its drafter gives it on this text; null where none was asked", "", True),
        Column("steps_without_draft", _I64, "Z likewise", "", True),
        Column("drafted", _I64, "D likewise", "tokens", True),
        Column("accepted", _I64, "A likewise: drafts that equal the text", "tokens", True),
    ),
)

GRADES = Table(
    "grades",
    "One row per measured request on a prompt that has an answer to check.",
    (
        *_REQUEST,
        Column("task", _STR, "prompt set and how it is checked"),
        Column("correct", pa.bool_(), "whether the answer is right"),
        Column("given", _STR, "number or program that was checked; null when the answer has none", "", True),
        Column("outcome", _STR, "right, wrong, no answer; passed, no code, the exception's name, timeout, killed"),
        Column("isolation", pa.list_(_STR), "what kept a program in while it was tested"),
    ),
)

AFTER = (WIDTHS, REPLAYS, GRADES)
