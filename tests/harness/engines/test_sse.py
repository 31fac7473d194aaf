"""Events and HTTP framing out of bytes that are cut anywhere, and the two together on recorded streams."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engines.server_http import ResponseDecoder
from harness.engines.sse import EventParser

RECORDED = sorted((Path(__file__).parents[2] / "recorded").glob("llama_cpp-*/*/*.sse"))
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


def parsed(parts: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


@settings(deadline=None)
@given(st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=6), LINE_ENDS, st.lists(st.integers(0, 10**6), max_size=20))
def test_events_are_the_same_wherever_the_bytes_are_cut(events: list[list[str]], end: bytes, places: list[int]) -> None:
    data = b"".join(b"".join(b"data: " + line.encode() + end for line in event) + end for event in events)
    expected = ["\n".join(event).encode() for event in events]
    # A stream that ends in a bare \r leaves open whether \n follows.
    assert parsed([*cut(data, places), b":\n"]) == expected


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 9))
def test_recorded_streams_are_the_same_wherever_they_are_cut(places: list[int], step: int) -> None:
    data = RECORDED[0].read_bytes()[:4000] + b"\n\n"
    whole = parsed([data])
    assert len(whole) > 5
    assert parsed(cut(data, places)) == whole
    assert parsed([data[i : i + step] for i in range(0, len(data), step)]) == whole


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_recorded_event_is_json_or_the_end(path: Path) -> None:
    events = parsed([path.read_bytes()])
    assert all(event == b"[DONE]" or json.loads(event) for event in events)


def test_comments_names_and_ids_are_no_data() -> None:
    assert parsed([b": ping\n\nevent: x\nid: 3\ndata:no space\n\ndata: a\ndata: b\n\n"]) == [b"no space", b"a\nb"]


def test_a_body_that_is_no_event_stream_is_kept_for_the_error() -> None:
    parser = EventParser()
    assert parser.feed(b'{"error": "x"}') == []
    assert parser.pending == b'{"error": "x"}'


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50), st.lists(st.integers(0, 10**6), max_size=20))
def test_chunked_bodies_are_the_same_wherever_the_bytes_are_cut(body: bytes, size: int, places: list[int]) -> None:
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"".join(f"{len(chunk):x};ext=1\r\n".encode() + chunk + b"\r\n" for chunk in chunks) + b"0\r\n\r\n"
    decoder = ResponseDecoder()
    assert b"".join(decoder.feed(part) for part in cut(data, places)) == body
    assert decoder.done
    decoder.close()


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 10**6), max_size=20), st.booleans())
def test_bodies_with_a_length_and_until_close(body: bytes, places: list[int], has_length: bool) -> None:
    length = f"Content-Length: {len(body)}\r\n" if has_length else ""
    data = f"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\n{length}\r\n".encode() + body
    decoder = ResponseDecoder()
    assert b"".join(decoder.feed(part) for part in cut(data, places)) == body
    assert decoder.status == 404
    assert decoder.done == has_length
    decoder.close()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"",
    ],
)
def test_an_answer_that_is_cut_short_is_an_error(data: bytes) -> None:
    decoder = ResponseDecoder()
    decoder.feed(data)
    with pytest.raises(ConnectionError, match="in the middle"):
        decoder.close()


def test_what_is_no_http_is_refused() -> None:
    with pytest.raises(ValueError, match="no HTTP answer"):
        ResponseDecoder().feed(b"SSH-2.0-OpenSSH\r\n\r\n")
