"""The server's side of one HTTP/2 connection, without I/O (RFC 9113), as far as gRPC needs it: no pushes, no
priorities. Whole answers wait here for the windows of the peer, and what a peer can make grow or repeat has
limits (gRPC sheet, section 2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from rmqkit.errors import ProtocolError
from rmqkit_grpc.hpack import Decoder, encoded
from rmqkit_grpc.limits import (
    CONNECTION_WINDOW_BYTES,
    MAX_BLOCK_BYTES,
    MAX_CALLS_PER_CONNECTION,
    MAX_CONTINUATIONS,
    MAX_HEADER_LIST_BYTES,
    MAX_RESETS,
    RESETS_PERIOD_MS,
    STREAM_WINDOW_BYTES,
)
from rmqkit_grpc.names import PREFACE

Headers = Sequence[tuple[str, str]]

_HEAD = Struct(">HBBBI")
_HEAD_BYTES = 9
_SETTING = Struct(">HI")
_U32 = Struct(">I")
_STREAM_BITS = 0x7FFF_FFFF
_MAX_WINDOW = 0x7FFF_FFFF
_FIRST_WINDOW_BYTES = 65_535
_FRAME_BYTES = 16_384
_MAX_FRAME_BYTES = 16_777_215


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Fault(IntEnum):
    """Error codes that this server sends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20
_MAX_CONCURRENT, _INITIAL_WINDOW, _MAX_FRAME_SIZE, _MAX_HEADER_LIST = 3, 4, 5, 6


class Asked(NamedTuple):
    """A call begins. `headers` has the last value of each name."""

    stream: int
    headers: Mapping[str, str]


class Received(NamedTuple):
    """Bytes of a call's messages."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The client sends no more on this call."""

    stream: int


class Reset(NamedTuple):
    """The client has given the call up."""

    stream: int


Event = Asked | Received | Ended | Reset


class _FaultError(Exception):
    """The peer broke the protocol."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class _Stream:
    """A call that has not ended.

    has_ended  the client sends no more
    sent       bytes sent, minus what WINDOW_UPDATE has allowed besides the window of the settings
    unread     bytes received since the last WINDOW_UPDATE
    room       what the client may send
    parts      bytes that wait for the windows, and `trailers` behind them
    """

    __slots__ = ("has_ended", "parts", "room", "sent", "trailers", "unread")

    def __init__(self) -> None:
        self.has_ended = False
        self.sent = 0
        self.unread = 0
        self.room = STREAM_WINDOW_BYTES
        self.parts: deque[memoryview] | None = None
        self.trailers: Headers | None = None


class Http2:
    """`receive` takes what arrives and says what it means; `take` has what is to be sent.

    waiting_bytes  bytes of answers that wait for the peer's windows
    """

    def __init__(self) -> None:
        self._kept = b""
        self._preface = PREFACE
        self._is_first = True
        self._decoder = Decoder(MAX_HEADER_LIST_BYTES)
        self._streams: dict[int, _Stream] = {}
        self._waiting: dict[int, _Stream] = {}
        self._last_stream = 0
        #: The header block that is not whole: its stream, flags and parts.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._window = _FIRST_WINDOW_BYTES
        self._stream_window = _FIRST_WINDOW_BYTES
        self._room = CONNECTION_WINDOW_BYTES
        self._unread = 0
        self._may_send_waiting = False
        self._gone = False
        self._resets: deque[float] = deque(maxlen=MAX_RESETS)
        self.waiting_bytes = 0
        settings = (
            (_MAX_CONCURRENT, MAX_CALLS_PER_CONNECTION),
            (_INITIAL_WINDOW, STREAM_WINDOW_BYTES),
            (_MAX_HEADER_LIST, MAX_HEADER_LIST_BYTES),
        )
        more = CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES
        self._out: list[bytes] = [
            _frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings)),
            _frame(Kind.WINDOW_UPDATE, 0, 0, _U32.pack(more)),
        ]
        self._takes: dict[int, Callable[[int, int, bytes, list[Event], float], None]] = {
            Kind.DATA: self._data,
            Kind.HEADERS: self._headers,
            Kind.PRIORITY: self._priority,
            Kind.RST_STREAM: self._rst_stream,
            Kind.SETTINGS: self._settings,
            Kind.PUSH_PROMISE: self._push_promise,
            Kind.PING: self._ping,
            Kind.GOAWAY: self._goaway,
            Kind.WINDOW_UPDATE: self._window_update,
            Kind.CONTINUATION: self._continuation,
        }

    # What arrives.

    def receive(self, data: bytes, now_ms: float) -> list[Event]:
        """What the bytes mean, in order. Raises ProtocolError, after which `take` has the farewell, and
        nothing more can be received."""
        events: list[Event] = []
        try:
            if self._preface:
                data = self._begin(data)
            self._cut(self._kept + data if self._kept else data, events, now_ms)
        except _FaultError as error:
            self.go_away(error.fault)
            raise ProtocolError(f"HTTP/2: {error}") from None
        except ProtocolError:
            self.go_away(Fault.COMPRESSION_ERROR)
            raise
        if self._may_send_waiting:
            self._may_send_waiting = False
            self._send_waiting()
        return events

    def _begin(self, data: bytes) -> bytes:
        """Take the preface; returns what is behind it."""
        wanted = self._preface
        if not wanted.startswith(data[: len(wanted)]):
            raise _FaultError(Fault.PROTOCOL_ERROR, "the connection does not begin as it must")
        self._preface = wanted[len(data) :]
        return data[len(wanted) :]

    def _cut(self, data: bytes, events: list[Event], now_ms: float) -> None:
        """Take the whole frames, and keep the rest."""
        at, end, takes = 0, len(data), self._takes
        while end - at >= _HEAD_BYTES:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > _FRAME_BYTES:
                raise _FaultError(Fault.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + _HEAD_BYTES
            if end - start < length:
                break
            at = start + length
            stream &= _STREAM_BITS
            if self._is_first:
                if kind != Kind.SETTINGS:
                    raise _FaultError(Fault.PROTOCOL_ERROR, "the first frame must be SETTINGS")
                self._is_first = False
            if self._block is not None and (kind != Kind.CONTINUATION or stream != self._block[0]):
                raise _FaultError(Fault.PROTOCOL_ERROR, "a header block is interrupted")
            take = takes.get(kind)
            if take is not None:
                take(stream, flags, data[start:at], events, now_ms)
        self._kept = data[at:]

    def _data(self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float) -> None:
        found, size = self._known(stream, "DATA"), len(payload)
        self._room -= size
        if self._room < 0:
            raise _FaultError(Fault.FLOW_CONTROL_ERROR, "more bytes than the window allows")
        self._unread += size
        if self._unread >= CONNECTION_WINDOW_BYTES // 2:
            self._out.append(_frame(Kind.WINDOW_UPDATE, 0, 0, _U32.pack(self._unread)))
            self._room += self._unread
            self._unread = 0
        if found is None:
            # It was on its way when the call ended.
            return
        if found.has_ended:
            raise _FaultError(Fault.STREAM_CLOSED, "bytes behind the end of a call")
        found.room -= size
        if found.room < 0:
            raise _FaultError(Fault.FLOW_CONTROL_ERROR, "more bytes than the window of a call allows")
        if flags & _PADDED:
            payload = _unpadded(payload)
        if payload:
            events.append(Received(stream, payload))
        if flags & _END_STREAM:
            found.has_ended = True
            events.append(Ended(stream))
            return
        found.unread += size
        if found.unread >= STREAM_WINDOW_BYTES // 2:
            self._out.append(_frame(Kind.WINDOW_UPDATE, 0, stream, _U32.pack(found.unread)))
            found.room += found.unread
            found.unread = 0

    def _headers(self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float) -> None:
        if not stream & 1:
            raise _FaultError(Fault.PROTOCOL_ERROR, f"a client cannot begin the call {stream}")
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _PRIORITY_FLAG:
            if len(payload) < 5:
                raise _FaultError(Fault.FRAME_SIZE_ERROR, "HEADERS are too short")
            payload = payload[5:]
        if flags & _END_HEADERS:
            self._whole_block(stream, flags, payload, events, now_ms)
        else:
            self._block = stream, flags, [payload]

    def _continuation(
        self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float
    ) -> None:
        if self._block is None:
            raise _FaultError(Fault.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, begun, parts = self._block
        parts.append(payload)
        if len(parts) > MAX_CONTINUATIONS or sum(map(len, parts)) > MAX_BLOCK_BYTES:
            raise _FaultError(Fault.ENHANCE_YOUR_CALM, "the headers of a call are too long")
        if flags & _END_HEADERS:
            self._block = None
            self._whole_block(stream, begun, b"".join(parts), events, now_ms)

    def _whole_block(self, stream: int, flags: int, block: bytes, events: list[Event], now_ms: float) -> None:
        fields = self._decoder.decode(block)
        found = self._streams.get(stream)
        if found is not None:
            # Trailers of a client mean nothing, but they are the end.
            if found.has_ended or not flags & _END_STREAM:
                raise _FaultError(Fault.PROTOCOL_ERROR, "headers behind the headers of a call")
            found.has_ended = True
            events.append(Ended(stream))
            return
        if stream <= self._last_stream:
            return
        self._last_stream = stream
        if self._gone:
            return
        if len(self._streams) >= MAX_CALLS_PER_CONNECTION:
            self._count_reset(now_ms)
            self._out.append(_frame(Kind.RST_STREAM, 0, stream, _U32.pack(Fault.REFUSED_STREAM)))
            return
        found = self._streams[stream] = _Stream()
        events.append(Asked(stream, dict(fields)))
        if flags & _END_STREAM:
            found.has_ended = True
            events.append(Ended(stream))

    def _rst_stream(
        self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float
    ) -> None:
        if len(payload) != 4:
            raise _FaultError(Fault.FRAME_SIZE_ERROR, "RST_STREAM has four bytes")
        found = self._known(stream, "RST_STREAM")
        self._count_reset(now_ms)
        if found is not None:
            self._forget(stream)
            events.append(Reset(stream))

    def _settings(self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float) -> None:
        if stream:
            raise _FaultError(Fault.PROTOCOL_ERROR, "SETTINGS of a call")
        if len(payload) % _SETTING.size or (flags & _ACK and payload):
            raise _FaultError(Fault.FRAME_SIZE_ERROR, "SETTINGS have a wrong length")
        if flags & _ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW:
                if value > _MAX_WINDOW:
                    raise _FaultError(Fault.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                self._may_send_waiting = True
                self._stream_window = value
            elif name == _MAX_FRAME_SIZE and not _FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
                raise _FaultError(Fault.PROTOCOL_ERROR, f"frames of {value} bytes")
        self._out.append(_SETTINGS_ACK)

    def _ping(self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float) -> None:
        if stream:
            raise _FaultError(Fault.PROTOCOL_ERROR, "PING of a call")
        if len(payload) != 8:
            raise _FaultError(Fault.FRAME_SIZE_ERROR, "PING has eight bytes")
        if not flags & _ACK:
            self._out.append(_frame(Kind.PING, _ACK, 0, payload))

    def _window_update(
        self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float
    ) -> None:
        if len(payload) != 4:
            raise _FaultError(Fault.FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")
        more = _U32.unpack(payload)[0] & _STREAM_BITS
        if not more:
            raise _FaultError(Fault.PROTOCOL_ERROR, "a window is opened by nothing")
        if not stream:
            self._window += more
            if self._window > _MAX_WINDOW:
                raise _FaultError(Fault.FLOW_CONTROL_ERROR, "the window of the connection is too large")
        elif (found := self._known(stream, "WINDOW_UPDATE")) is not None:
            found.sent -= more
            if self._stream_window - found.sent > _MAX_WINDOW:
                raise _FaultError(Fault.FLOW_CONTROL_ERROR, "the window of a call is too large")
        self._may_send_waiting = True

    def _priority(self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float) -> None:
        if not stream:
            raise _FaultError(Fault.PROTOCOL_ERROR, "PRIORITY of no call")
        if len(payload) != 5:
            raise _FaultError(Fault.FRAME_SIZE_ERROR, "PRIORITY has five bytes")

    def _push_promise(
        self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float
    ) -> None:
        raise _FaultError(Fault.PROTOCOL_ERROR, "a client cannot push")

    def _goaway(self, stream: int, flags: int, payload: bytes, events: list[Event], now_ms: float) -> None:
        if stream:
            raise _FaultError(Fault.PROTOCOL_ERROR, "GOAWAY of a call")

    def _known(self, stream: int, what: str) -> _Stream | None:
        """The stream of a frame; None for one that has ended."""
        if not stream or stream > self._last_stream:
            raise _FaultError(Fault.PROTOCOL_ERROR, f"{what} of a call that has not begun")
        return self._streams.get(stream)

    def _count_reset(self, now_ms: float) -> None:
        resets = self._resets
        if len(resets) == MAX_RESETS and resets[0] > now_ms - RESETS_PERIOD_MS:
            raise _FaultError(
                Fault.ENHANCE_YOUR_CALM,
                f"more than {MAX_RESETS} calls were reset within {RESETS_PERIOD_MS // 1000} s",
            )
        resets.append(now_ms)

    # What is sent.

    def is_open(self, stream: int) -> bool:
        """Whether an answer to the call may still be sent."""
        return stream in self._streams

    def respond(self, stream: int, headers: Headers, *, end: bool = False) -> None:
        """Begin an answer; with `end` it has nothing else."""
        if stream not in self._streams:
            return
        flags = _END_HEADERS | _END_STREAM if end else _END_HEADERS
        self._out.append(_frame(Kind.HEADERS, flags, stream, _block(tuple(headers))))
        if end:
            self._end(stream)

    def send(self, stream: int, data: bytes) -> None:
        """Send bytes of an answer, now or when the windows allow it."""
        found = self._streams.get(stream)
        if found is None or not data:
            return
        if found.parts is None:
            size = len(data)
            if size <= _FRAME_BYTES and size <= self._window and size <= self._stream_window - found.sent:
                self._window -= size
                found.sent += size
                self._out += (_frame_head(Kind.DATA, 0, stream, size), data)
                return
            found.parts = deque()
            self._waiting[stream] = found
        found.parts.append(memoryview(data))
        self.waiting_bytes += len(data)
        self._send_some(stream, found)

    def finish(self, stream: int, trailers: Headers) -> None:
        """End an answer behind what was sent."""
        found = self._streams.get(stream)
        if found is None:
            return
        if found.parts is not None:
            found.trailers = trailers
            return
        flags = _END_HEADERS | _END_STREAM
        self._out.append(_frame(Kind.HEADERS, flags, stream, _block(tuple(trailers))))
        self._end(stream)

    def reset(self, stream: int, fault: Fault = Fault.NO_ERROR) -> None:
        """Tell the client that nothing more of a call is read, and nothing sent."""
        if stream in self._streams:
            self._out.append(_frame(Kind.RST_STREAM, 0, stream, _U32.pack(fault)))
            self._forget(stream)

    def go_away(self, fault: Fault = Fault.NO_ERROR) -> None:
        """Let the peer begin no more calls; those that it has begun may be answered."""
        if not self._gone or fault:
            self._gone = True
            self._out.append(_frame(Kind.GOAWAY, 0, 0, _U32.pack(self._last_stream) + _U32.pack(fault)))

    def take(self) -> bytes:
        """The bytes to be sent."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return b"".join(out)

    def _send_some(self, stream: int, found: _Stream) -> None:
        """Send of what waits on a stream what the windows allow."""
        parts = found.parts
        assert parts is not None, "something waits"
        while parts:
            part = parts[0]
            size = min(_FRAME_BYTES, len(part), self._window, self._stream_window - found.sent)
            if size <= 0:
                return
            self._window -= size
            found.sent += size
            self.waiting_bytes -= size
            self._out += (_frame_head(Kind.DATA, 0, stream, size), bytes(part[:size]))
            if size == len(part):
                parts.popleft()
            else:
                parts[0] = part[size:]
        found.parts = None
        del self._waiting[stream]
        if found.trailers is not None:
            self.finish(stream, found.trailers)

    def _send_waiting(self) -> None:
        for stream, found in list(self._waiting.items()):
            if self._window <= 0:
                return
            self._send_some(stream, found)

    def _end(self, stream: int) -> None:
        """End a stream after its answer; RST_STREAM ends what the client still sends."""
        if not self._streams[stream].has_ended:
            self._out.append(_frame(Kind.RST_STREAM, 0, stream, _U32.pack(Fault.NO_ERROR)))
        self._forget(stream)

    def _forget(self, stream: int) -> None:
        found = self._streams.pop(stream)
        if found.parts is not None:
            self.waiting_bytes -= sum(map(len, found.parts))
            self._waiting.pop(stream, None)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _FaultError(Fault.PROTOCOL_ERROR, "a padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


_SETTINGS_ACK = _frame(Kind.SETTINGS, _ACK, 0)


@lru_cache(maxsize=64)
def _block(headers: tuple[tuple[str, str], ...]) -> bytes:
    return encoded(headers)


__all__ = ["Asked", "Ended", "Event", "Fault", "Headers", "Http2", "Received", "Reset"]
