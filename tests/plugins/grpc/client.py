"""A small client of gRPC on trio, over any transport, with jh2 as its HTTP/2 and all frames in its hands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import trio
from attrs import Factory, define
from jh2 import events as h2_events
from jh2.config import H2Configuration
from jh2.connection import H2Connection

from rmqkit.broker.run.running import RunningBroker
from rmqkit.testing.broker import dialer
from rmqkit.testing.listening import ENDED
from rmqkit_grpc.framing import MessageReader, framed
from rmqkit_grpc.messages import PACKAGE, V2

PATIENCE_S = 60
CONNECT_TIMEOUT_MS = 30_000
AUTHORITY = "broker.example:8081"
M = V2.messages
ENUMS = V2.enums
CODES = ENUMS["Code"]


@define
class Reply:
    """What has arrived on a stream."""

    headers: dict[str, str] = Factory(dict)
    trailers: dict[str, str] = Factory(dict)
    data: list[bytes] = Factory(list)
    is_ended: bool = False
    reset: int | None = None
    reader: MessageReader = Factory(MessageReader)

    @property
    def status(self) -> int | None:
        """grpc-status, wherever it is."""
        found = self.trailers.get("grpc-status", self.headers.get("grpc-status"))
        return None if found is None else int(found)

    @property
    def text(self) -> str:
        """grpc-message."""
        return self.trailers.get("grpc-message", self.headers.get("grpc-message", ""))


class Client:
    """One connection. Methods send and then read until what they wait for has arrived."""

    def __init__(self, stream: anyio.abc.ByteStream, client_id: str = "client-1") -> None:
        self.stream = stream
        self.client_id = client_id
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.replies: dict[int, Reply] = {}
        self.went_away = False
        self.pongs = 0
        self._next = 1

    def headers(self, path: str, **metadata: str) -> list[tuple[str, str]]:
        """The headers of a call."""
        fields = {"x-mq-client-id": self.client_id, "x-mq-language": "PYTHON"}
        fields |= {name.replace("_", "-"): value for name, value in metadata.items()}
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", AUTHORITY),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *((name, value) for name, value in fields.items() if value),
        ]

    async def begin(self, method: str, *messages: Any, end: bool = True, **metadata: Any) -> int:
        """Begin a call with these messages; returns its stream."""
        path = method if method.startswith("/") else f"/{PACKAGE}.MessagingService/{method}"
        stream = self._next
        self._next += 2
        self.replies[stream] = Reply()
        data = b"".join(framed(each.SerializeToString()) for each in messages)
        self.h2.send_headers(stream, self.headers(path, **metadata), end_stream=end and not data)
        if data:
            await self.send_data(stream, data, end=end)
        await self.flush()
        return stream

    async def send_data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send bytes of a call as the windows allow."""
        at = 0
        while at < len(data):
            room = min(
                self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data) - at
            )
            if not room:
                await self.flush()
                await self.read()
                continue
            self.h2.send_data(stream, data[at : at + room])
            at += room
        if end:
            self.h2.end_stream(stream)
        await self.flush()

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.stream.send(data)

    async def read(self) -> None:
        """Take what has arrived. Raises EndOfStream when the server has closed."""
        for event in self.h2.receive_data(await self.stream.receive()):
            self._take(event)
        await self.flush()

    def _take(self, event: Any) -> None:
        if isinstance(event, h2_events.PingAckReceived):
            self.pongs += 1
        if isinstance(event, h2_events.ConnectionTerminated):
            self.went_away = True
        reply = self.replies.get(getattr(event, "stream_id", None) or 0)
        if reply is None:
            return
        if isinstance(event, h2_events.ResponseReceived):
            reply.headers = dict(event.headers)
        elif isinstance(event, h2_events.TrailersReceived):
            reply.trailers = dict(event.headers)
        elif isinstance(event, h2_events.DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            reply.data += reply.reader.feed(bytes(event.data))
        elif isinstance(event, h2_events.StreamEnded):
            reply.is_ended = True
        elif isinstance(event, h2_events.StreamReset):
            reply.reset = event.error_code

    async def ends(self) -> bool:
        """Read until the server closes the connection."""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await self.read()
                except ENDED:
                    return True

    async def until_ended(self, stream: int) -> Reply:
        """The whole reply of a call."""
        reply = self.replies[stream]
        with trio.fail_after(PATIENCE_S):
            while not reply.is_ended and reply.reset is None:
                await self.read()
        return reply

    async def until_answered(self, stream: int) -> Reply:
        """The call once it has a message, or has ended."""
        reply = self.replies[stream]
        with trio.fail_after(PATIENCE_S):
            while not reply.data and not reply.is_ended and reply.reset is None:
                await self.read()
        return reply

    async def until_messages(self, stream: int, count: int) -> Sequence[bytes]:
        """The messages of a call, once there are so many."""
        reply = self.replies[stream]
        with trio.fail_after(PATIENCE_S):
            while len(reply.data) < count:
                assert not reply.is_ended, (reply.status, reply.text)
                await self.read()
        return reply.data

    async def call(self, method: str, message: Any, **metadata: Any) -> Any:
        """The answer of a unary call, which must succeed for gRPC."""
        reply = await self.until_ended(await self.begin(method, message, **metadata))
        assert reply.status == 0, (reply.status, reply.text)
        (data,) = reply.data
        return M[f"{method}Response"].FromString(data)

    async def settle(self, settings: Any) -> tuple[int, Any]:
        """Open Telemetry with settings; its stream and the settings that the server answers."""
        stream = await self.begin("Telemetry", M["TelemetryCommand"](settings=settings), end=False)
        (data,) = await self.until_messages(stream, 1)
        answer = M["TelemetryCommand"].FromString(data)
        assert answer.status.code == CODES["OK"]
        return stream, answer.settings


@asynccontextmanager
async def connected(
    running: RunningBroker, client_id: str = "client-1", *, scheme: str | None = None
) -> AsyncIterator[Client]:
    """A client of gRPC at the normal port of a broker, whose transport has this scheme."""
    stream = await dialer(scheme)(running.address, CONNECT_TIMEOUT_MS)
    async with stream:
        yield Client(stream, client_id)


def producing(*topics: str) -> Any:
    """Settings of a producer."""
    settings = M["Settings"](client_type=ENUMS["ClientType"]["PRODUCER"])
    settings.publishing.SetInParent()
    for topic in topics:
        settings.publishing.topics.add(name=topic)
    return settings


def consuming(group: str, *topics: str, tag: str = "*", kind: str = "SIMPLE_CONSUMER") -> Any:
    """Settings of a consumer."""
    settings = M["Settings"](client_type=ENUMS["ClientType"][kind])
    settings.subscription.group.name = group
    for topic in topics:
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.type = ENUMS["FilterType"]["TAG"]
        entry.expression.expression = tag
    return settings


def message(topic: str, body: bytes = b"hello", message_id: str = "01AA", **system: Any) -> Any:
    """A message as clients send it."""
    made = M["Message"](body=body)
    made.topic.name = topic
    properties = made.system_properties
    properties.message_id = message_id
    properties.message_type = ENUMS["MessageType"]["NORMAL"]
    properties.body_encoding = ENUMS["Encoding"]["IDENTITY"]
    for name, value in system.items():
        if name == "keys":
            properties.keys.extend(value)
        elif name.endswith("_ms"):
            stamp = getattr(properties, name.removesuffix("_ms"))
            stamp.seconds, stamp.nanos = value // 1_000, value % 1_000 * 1_000_000
        else:
            setattr(properties, name, value)
    return made


def sending(*messages: Any) -> Any:
    """A SendMessageRequest."""
    return M["SendMessageRequest"](messages=messages)


def resource(name: str, namespace: str = "") -> Any:
    return M["Resource"](name=name, resource_namespace=namespace)
