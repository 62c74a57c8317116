"""A protocol of lines, which shares the ports of brokers: it begins with `LINE`, and `TOPIC text` sends a
message. Answers are `OK offset` and `ERR code remark`."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import ProtocolError
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.protocols import ProtocolConnection, Recipient, WireProtocol
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2

HELLO = b"LINE\n"
ALPN = "line/1"
MAX_LINE_BYTES = 4_096


class LineAnswers(Recipient):
    """Writes a line for each answer, in the order of the requests, and one for each request of the
    server."""

    def __init__(self, connection: ProtocolConnection) -> None:
        self._connection = connection
        #: Opaque -> the line of the answer, None before it is known.
        self._owed: dict[int, bytes | None] = {}

    def numbered(self, requests: Sequence[Command]) -> Sequence[Command]:
        """Remember the order of requests."""
        for each in requests:
            if not each.is_response:
                each.opaque = max(self._owed, default=0) + 1
                self._owed[each.opaque] = None
        return requests

    def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
        for asked, each in zip(requests, answers, strict=True):
            text = f"ERR {each.code} {each.remark}" if each.code else f"OK {each.fields().get('queueOffset')}"
            self._owed[asked.opaque] = f"{text}\n".encode()
        for opaque, line in list(self._owed.items()):
            if line is None:
                break
            self._connection.send(line)
            del self._owed[opaque]

    def push(self, command: Command) -> bool:
        self._connection.send(f"PUSH {command.code} {command.opaque}\n".encode())
        return True


class LineProtocol(WireProtocol):
    """`peers` are those of the connections so far."""

    name = "line"
    prefixes = (HELLO,)
    alpn = (ALPN,)

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def serve(self, connection: ProtocolConnection) -> None:
        answers = LineAnswers(connection)
        peer = connection.peer(answers)
        self.peers.append(peer)
        kept = b""
        while data := await connection.receive():
            *lines, kept = (kept + data).split(b"\n")
            if len(kept) > MAX_LINE_BYTES:
                raise ProtocolError("a line is too long")
            requests = [parsed(line) for line in lines if line and line + b"\n" != HELLO]
            await connection.handle(peer, answers.numbered(requests))


def parsed(line: bytes) -> Command:
    """The request of a line."""
    word, _, text = line.partition(b" ")
    if word == b"ANSWER":
        return Command(code=0, flag=1, opaque=int(text))
    header = SendMessageRequestHeaderV2(producer_group="lines", topic=word.decode(), queue_id=0)
    return request(RequestCode.SEND_MESSAGE_V2, header, text)


class LinePlugin:
    """Registers the protocol."""

    def __init__(self) -> None:
        self.protocol = LineProtocol()

    @hookimpl
    def rmqkit_register_protocols(self, register: Register[WireProtocol], config: Config) -> None:
        register("line", self.protocol)
