"""What is decoded as bytes come in: frames, Server-Sent Events, multipart. Cut anywhere, the result is the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client import FrameDecoder, ProtocolError, encode_frame
from millstream.client.multipart import MultipartDecoder, boundary_of
from millstream.client.sse import SseDecoder
from millstream.protocol.http.sse import control_event, data_event

cuts = st.lists(st.integers(0, 400), max_size=8)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted(cut for cut in at if cut < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


@given(st.lists(st.binary(max_size=50)), cuts)
def test_frames(messages, at):
    decoder = FrameDecoder()
    found = [frame for piece in pieces(b"".join(map(encode_frame, messages)), at) for frame in decoder.feed(piece)]
    assert found == messages
    assert decoder.pending == 0


def test_frames_have_a_documented_form_and_a_limit():
    assert encode_frame(b"abc") == b"\0\0\0\x03abc"
    decoder = FrameDecoder(frame_bytes_max=10)
    with pytest.raises(ProtocolError, match="begins"):
        decoder.feed(b"plain text, no frames")


@given(st.lists(st.text(alphabet="ab \n\r:é", max_size=12), max_size=5), cuts)
def test_events_of_our_server(texts, at):
    wire = b"".join(
        data_event([text.encode()], json=False, text=True) + control_event(i, 5, up_to_date=False, closed=False)
        for i, text in enumerate(texts)
    )
    decoder = SseDecoder()
    events = [event for piece in pieces(wire, at) for event in decoder.feed(piece)]
    assert [event.kind for event in events] == ["data", "control"] * len(texts)
    lines = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert [event.data.decode() for event in events[::2]] == lines


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_events_with_any_line_end_cut_anywhere(end):
    wire = end.join(["retry: 10", ": a comment", "event: data", "data: one", "data:two", "id: 7", "", "data", "", ""])
    for cut in range(len(wire)):
        decoder = SseDecoder()
        events = [*decoder.feed(wire[:cut].encode()), *decoder.feed(wire[cut:].encode())]
        assert [(event.kind, event.data) for event in events] == [("data", b"one\ntwo"), ("message", b"")]


def test_multipart_cut_anywhere():
    wire = (
        b"a preamble\r\n--b0\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--b0x is data\r\n"
        b"\r\n--b0\r\nX-Other: 1\r\ncontent-type: text/plain\r\n\r\n\r\n--b0\r\n\r\nno headers\r\n--b0--\r\nafterwards"
    )
    for cut in range(len(wire)):
        decoder = MultipartDecoder("b0")
        parts = [*decoder.feed(wire[:cut]), *decoder.feed(wire[cut:])]
        assert [part.content_type for part in parts] == ["application/octet-stream", "text/plain", "text/plain"]
        assert [part.data for part in parts] == [b"\r\n--b0x is data\r\n", b"", b"no headers"]
        assert decoder.finished


def test_boundaries():
    assert boundary_of("multipart/mixed; boundary=abc") == "abc"
    assert boundary_of('multipart/mixed; charset=x; boundary="a b c"') == "a b c"
    with pytest.raises(ProtocolError):
        boundary_of("multipart/mixed")
