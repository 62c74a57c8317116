"""The server's side of HTTP/2: what arrives, windows, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import ProtocolError
from rmqkit_grpc.http2 import Asked, Ended, Http2, Received, Reset
from rmqkit_grpc.limits import MAX_CALLS_PER_CONNECTION, MAX_HEADER_LIST_BYTES, MAX_RESETS, RESETS_PERIOD_MS
from tests.plugins.grpc import frames as f

_TEXT = f.fields("SendMessage")


def begun() -> Http2:
    """A connection after its beginning."""
    made = Http2()
    assert made.receive(f.begun(), 0) == []
    made.take()
    return made


def headers(stream: int, flags: int = f.END_HEADERS, **more: str) -> bytes:
    return f.frame(f.HEADERS, flags, stream, f.block(_TEXT | more))


def test_it_begins_with_settings_and_a_large_window() -> None:
    """The client learns the limits before it sends."""
    kinds = [(kind, stream) for kind, _, stream, _ in f.frames(Http2().take())]
    assert kinds == [(f.SETTINGS, 0), (f.WINDOW_UPDATE, 0)]


def test_a_call() -> None:
    """Metadata, bytes, the end; then the answer in order."""
    http2 = begun()
    found = http2.receive(
        headers(1) + f.frame(f.DATA, 0, 1, b"abc") + f.frame(f.DATA, f.END_STREAM, 1, b"d"), 0
    )
    assert found == [Asked(1, _TEXT), Received(1, b"abc"), Received(1, b"d"), Ended(1)]
    http2.respond(1, ((":status", "200"),))
    http2.send(1, b"answer")
    http2.finish(1, (("grpc-status", "0"),))
    sent = [(kind, flags & f.END_STREAM) for kind, flags, stream, _ in f.frames(http2.take()) if stream == 1]
    assert sent == [(f.HEADERS, 0), (f.DATA, 0), (f.HEADERS, f.END_STREAM)]
    assert not http2.is_open(1)
    http2.send(1, b"more")
    http2.finish(1, ())
    http2.respond(1, ())
    assert http2.take() == b""


@settings(max_examples=50)
@given(st.data())
def test_frames_do_not_depend_on_how_their_bytes_arrive(data: st.DataObject) -> None:
    """Whatever the pieces are, the same happens."""
    whole = headers(1) + f.frame(f.DATA, 0, 1, b"abc") + headers(3, f.END_HEADERS | f.END_STREAM)
    whole += f.frame(f.RST_STREAM, 0, 1, bytes([0, 0, 0, 8]))
    http2, found, at = begun(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found += http2.receive(whole[at : at + size], 0)
        at += size
    assert found == [Asked(1, _TEXT), Received(1, b"abc"), Asked(3, _TEXT), Ended(3), Reset(1)]


def test_an_answer_waits_for_the_windows() -> None:
    """What the windows do not allow is kept, counted, and sent when they open; the trailers come last."""
    http2 = begun()
    http2.receive(headers(1, f.END_HEADERS | f.END_STREAM), 0)
    http2.respond(1, ((":status", "200"),))
    http2.send(1, bytes(100_000))
    http2.finish(1, (("grpc-status", "0"),))
    sent = http2.take()
    assert sum(len(payload) for kind, _, _, payload in f.frames(sent) if kind == f.DATA) == 65_535
    assert http2.waiting_bytes == 100_000 - 65_535
    assert not f.ended(sent)
    for stream in (0, 1):
        assert http2.receive(f.frame(f.WINDOW_UPDATE, 0, stream, (20_000).to_bytes(4)), 0) == []
    assert http2.waiting_bytes == 100_000 - 85_535
    for stream in (1, 0):
        http2.receive(f.frame(f.WINDOW_UPDATE, 0, stream, (20_000).to_bytes(4)), 0)
    assert http2.waiting_bytes == 0
    assert f.ended(http2.take()) == [1]


def test_a_smaller_window_stops_answers() -> None:
    """A client may make the windows of streams smaller, even negative, and open them again."""
    http2 = begun()
    http2.receive(headers(1, f.END_HEADERS | f.END_STREAM), 0)
    http2.respond(1, ((":status", "200"),))
    http2.send(1, bytes(60_000))
    setting = (4).to_bytes(2) + (10).to_bytes(4)
    http2.receive(f.frame(f.SETTINGS, 0, 0, setting), 0)
    http2.take()
    http2.send(1, b"waits")
    assert http2.waiting_bytes == 5
    http2.receive(f.frame(f.WINDOW_UPDATE, 0, 1, (60_000).to_bytes(4)), 0)
    assert http2.waiting_bytes == 0
    assert [payload for kind, _, _, payload in f.frames(http2.take()) if kind == f.DATA] == [b"waits"]


def test_a_reset_drops_what_waits() -> None:
    """Nothing is kept for a call that the client has given up."""
    http2 = begun()
    http2.receive(headers(1, f.END_HEADERS | f.END_STREAM), 0)
    http2.respond(1, ((":status", "200"),))
    http2.send(1, bytes(200_000))
    assert http2.waiting_bytes
    assert http2.receive(f.frame(f.RST_STREAM, 0, 1, bytes(4)), 0) == [Reset(1)]
    assert http2.waiting_bytes == 0
    assert not http2.is_open(1)


def test_an_answer_before_the_end_of_its_request() -> None:
    """The client is told that nobody reads the rest, and what is on its way is passed over."""
    http2 = begun()
    http2.receive(headers(1), 0)
    http2.respond(1, ((":status", "415"),), end=True)
    kinds = [kind for kind, *_ in f.frames(http2.take())]
    assert kinds == [f.HEADERS, f.RST_STREAM]
    late = f.frame(f.DATA, f.END_STREAM, 1, b"late") + f.frame(f.RST_STREAM, 0, 1, bytes(4)) + headers(1)
    assert http2.receive(late, 0) == []


def test_the_end_of_a_server() -> None:
    """Calls that have begun are answered behind the farewell; others are passed over."""
    http2 = begun()
    http2.receive(headers(1, f.END_HEADERS | f.END_STREAM), 0)
    http2.go_away()
    http2.go_away()
    assert http2.receive(headers(3), 0) == []
    http2.respond(1, ((":status", "200"),), end=True)
    assert [kind for kind, *_ in f.frames(http2.take())] == [f.GOAWAY, f.HEADERS]


def test_paddings_and_priorities_are_passed_over() -> None:
    """They may be in any frame that carries something."""
    http2 = begun()
    block = b"\2" + bytes(5) + f.block(_TEXT) + b"xx"
    flags = f.END_HEADERS | 0x8 | 0x20
    data = f.frame(f.HEADERS, flags, 1, block) + f.frame(f.DATA, f.END_STREAM | 0x8, 1, b"\3abc" + b"xxx")
    data += f.frame(f.PRIORITY, 0, 1, bytes(5)) + f.frame(0x55, 0xFF, 7, b"unknown")
    assert http2.receive(data, 0) == [Asked(1, _TEXT), Received(1, b"abc"), Ended(1)]


def test_trailers_of_a_client_are_its_end() -> None:
    """Also where they follow the bytes."""
    http2 = begun()
    http2.receive(headers(1), 0)
    block = f.block({"x-end": "1"})
    assert http2.receive(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, block), 0) == [Ended(1)]
    _refused(http2, f.frame(f.DATA, 0, 1, b"more"))


def test_pings_are_answered() -> None:
    """With their own bytes, however many; nobody is sent away for them."""
    http2 = begun()
    http2.receive(b"".join(f.frame(f.PING, 0, 0, number.to_bytes(8)) for number in range(1_000)), 0)
    pongs = [payload for kind, flags, _, payload in f.frames(http2.take()) if kind == f.PING and flags == 1]
    assert pongs == [number.to_bytes(8) for number in range(1_000)]


def test_bytes_that_were_taken_open_the_window_again() -> None:
    """A client can send more than the windows in all."""
    http2 = begun()
    http2.receive(headers(1), 0)
    for _ in range(2_000):
        http2.receive(f.frame(f.DATA, 0, 1, bytes(16_384)), 0)
    opened = {stream for kind, _, stream, _ in f.frames(http2.take()) if kind == f.WINDOW_UPDATE}
    assert opened == {0, 1}


# --- limits
# ---------------------------------------------------------------------------------------------------


def _refused(http2: Http2, data: bytes, now_ms: float = 0) -> None:
    """The connection ends with a farewell that names a fault."""
    with pytest.raises(ProtocolError, match="HTTP/2"):
        http2.receive(data, now_ms)
    assert [kind for kind, *_ in f.frames(http2.take())][-1] == f.GOAWAY


def test_too_many_calls() -> None:
    """A call above the limit of the settings is refused, so that the client may try again; those that go on
    asking are sent away."""
    http2 = begun()
    for number in range(MAX_CALLS_PER_CONNECTION):
        http2.receive(headers(2 * number + 1), 0)
    stream = 2 * MAX_CALLS_PER_CONNECTION + 1
    assert http2.receive(headers(stream), 0) == []
    assert [(kind, number) for kind, _, number, _ in f.frames(http2.take())] == [(f.RST_STREAM, stream)]
    for number in range(1, MAX_RESETS):
        http2.receive(headers(stream + 2 * number), 0)
    http2.take()
    _refused(http2, headers(stream + 2 * MAX_RESETS))


def test_too_large_metadata() -> None:
    """Names and values have a limit together, also when they come from the table of the compression."""
    _refused(
        begun(), f.frame(f.HEADERS, f.END_HEADERS, 1, f.block(_TEXT | {"x": "y" * MAX_HEADER_LIST_BYTES}))
    )
    bomb = b"\x40\x01x\x7f\x81\x17" + b"y" * 3_072 + b"\xbe" * 2_000
    _refused(begun(), f.frame(f.HEADERS, f.END_HEADERS, 1, bomb))


def test_endless_metadata() -> None:
    """A header block cannot go on for ever."""
    http2 = begun()
    http2.receive(f.frame(f.HEADERS, 0, 1, f.block(_TEXT)), 0)
    _refused(http2, b"".join(f.frame(f.CONTINUATION, 0, 1, b"") for _ in range(200)))


def test_rapid_resets() -> None:
    """Calls that are begun and given up again and again end the connection."""
    http2, stream = begun(), 1
    for _ in range(MAX_RESETS):
        http2.receive(headers(stream) + f.frame(f.RST_STREAM, 0, stream, bytes(4)), 0)
        http2.take()
        stream += 2
    _refused(http2, headers(stream) + f.frame(f.RST_STREAM, 0, stream, bytes(4)), RESETS_PERIOD_MS - 1)


def test_resets_at_leisure() -> None:
    """A client that gives up a call now and then is not sent away."""
    http2, stream = begun(), 1
    for number in range(MAX_RESETS * 2):
        http2.receive(
            headers(stream) + f.frame(f.RST_STREAM, 0, stream, bytes(4)),
            number * RESETS_PERIOD_MS / MAX_RESETS,
        )
        http2.take()
        stream += 2


@pytest.mark.parametrize(
    "data",
    [
        f.frame(f.DATA, 0, 1, b"x"),
        f.frame(f.CONTINUATION, f.END_HEADERS, 1, b""),
        f.frame(f.PUSH_PROMISE, f.END_HEADERS, 1, b"\0\0\0\2"),
        f.frame(f.WINDOW_UPDATE, 0, 0, bytes(4)),
        f.frame(f.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2,
        f.frame(f.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
        f.frame(f.SETTINGS, 0, 0, b"x"),
        f.frame(f.SETTINGS, 1, 0, b"\0\4\0\0\0\1"),
        f.frame(f.PING, 0, 0, b"short"),
        f.frame(f.RST_STREAM, 0, 0, bytes(4)),
        f.frame(f.HEADERS, f.END_HEADERS, 2, f.block(_TEXT)),
        f.frame(f.HEADERS, f.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        f.frame(f.HEADERS, f.END_HEADERS | 0x8, 1, b"\x7f"),
        f.frame(f.HEADERS, f.END_HEADERS | 0x20, 1, b"\0\0"),
        f.frame(f.PRIORITY, 0, 1, b"\0"),
        f.frame(f.GOAWAY, 0, 1, bytes(8)),
        (20_000).to_bytes(3) + bytes([f.DATA, 0, 0, 0, 0, 1]) + bytes(20_000),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_faults_end_the_connection(data: bytes) -> None:
    """Each is answered with a farewell."""
    _refused(begun(), data)


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.builds(
                f.frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=60)
            ),
            st.builds(headers, st.integers(0, 9), st.integers(0, 255)),
            st.binary(max_size=40),
        ),
        max_size=20,
    )
)
def test_whatever_arrives_is_understood_or_refused(parts: list[bytes]) -> None:
    """Nothing but a ProtocolError is raised, and answering goes on to work."""
    http2 = begun()
    try:
        for part in parts:
            for event in http2.receive(part, 0):
                if isinstance(event, Ended):
                    http2.respond(event.stream, ((":status", "200"),))
                    http2.send(event.stream, b"answer")
                    http2.finish(event.stream, (("grpc-status", "0"),))
    except ProtocolError:
        assert http2.take()
    else:
        http2.go_away()
