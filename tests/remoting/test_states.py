"""The states of the halves of a connection: whatever happens to it, they change as their tables say."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import anyio
import pytest
import trio

from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting import server
from rmqkit.remoting.other_protocols import PortProtocols
from rmqkit.remoting.peer import ServedPeer
from rmqkit.remoting.reading import READ_TABLE, ReadState
from rmqkit.remoting.writing import WRITE_TABLE, WriteState
from tests.line_protocol import HELLO, LineProtocol
from tests.remoting.parts import BIG, ECHO, LATE, Gate, echo, numbered, until
from tests.remoting.test_joined_run import linux
from tests.remoting.test_other_protocols import serving
from tests.remoting.wire import Handler, served

STATES = ("_read_state", "_write_state")
BIG_BYTES = 4_000_000


class Noting(ServedPeer):
    """A connection that notes the changes of its states. The first `shortages` reads find no memory."""

    moves: set[tuple[Enum, Enum]]
    shortages: int

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name, value)
        if name in STATES and before is not value:
            self.moves.add((before, value))
        super().__setattr__(name, value)

    def _refused(self) -> bool:
        if self.shortages:
            type(self).shortages -= 1
            return True
        return super()._refused()


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[Enum, Enum]]]:
    """The changes of all connections of a test, which must be those of the tables."""
    noted: set[tuple[Enum, Enum]] = set()
    monkeypatch.setattr(Noting, "moves", noted, raising=False)
    monkeypatch.setattr(Noting, "shortages", 0, raising=False)
    monkeypatch.setattr(server, "ServedPeer", Noting)
    yield noted
    legal = {(state, after) for state, all_after in READ_TABLE.items() for after in all_after} | {
        (state, after) for state, all_after in WRITE_TABLE.items() for after in all_after
    }
    assert noted <= legal
    assert noted


def test_the_tables_have_all_states() -> None:
    """Each state is left for another one, and each but the first is reached."""
    for table, kind in ((READ_TABLE, ReadState), (WRITE_TABLE, WriteState)):
        assert set(table) == set(kind)
        for state, after in table.items():
            assert after
            assert state not in after
        assert set.union(*map(set, table.values())) == set(kind)


def big(request: Command, peer: Peer) -> Outcome:
    return answer(request, body=bytes(BIG_BYTES))


async def test_a_socket_that_is_answered_at_once_and_later(moves: set[tuple[Enum, Enum]]) -> None:
    """Small and large answers, a client that reads slowly, and a drain with a request in flight."""
    gate = Gate()
    processors = {ECHO: Handler(echo), BIG: Handler(big), LATE: Handler(gate)}
    async with served(processors) as there, there.client(receive_buffer_bytes=4_096) as client:
        await client.ask(numbered(ECHO))
        await client.send(*(numbered(BIG, opaque=at) for at in range(3)))
        assert [len((await client.receive()).body) for _ in range(3)] == [BIG_BYTES] * 3
        await client.send(numbered(LATE))
        await until(lambda: gate.waiting == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.server.drain, 60_000)
            await until(lambda: all(not peer.core.begins_calls for peer in there.server.peers))
            gate.event.set()
            assert (await client.receive()).remark == "late"
            assert await client.is_closed()
    assert {
        (ReadState.WAITING, ReadState.BUSY),
        (WriteState.IDLE, WriteState.SENDING),
        (WriteState.SENDING, WriteState.IDLE),
    } <= moves


@linux
async def test_bytes_without_memory_for_them(
    moves: set[tuple[Enum, Enum]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is ready while there is no memory is read later, and nothing is lost."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        await client.ask(numbered(ECHO))
        monkeypatch.setattr(Noting, "shortages", 1)
        for opaque in range(3):
            assert (await client.ask(numbered(ECHO, opaque=opaque))).opaque == opaque
    assert (ReadState.WAITING, ReadState.SHORT) in moves
    assert (ReadState.SHORT, ReadState.BUSY) in moves


async def test_a_connection_of_another_protocol(moves: set[tuple[Enum, Enum]]) -> None:
    """It waits and sends by the same states, and a drain ends its wait."""
    async with serving(PortProtocols([LineProtocol()])) as (there, connect), await connect() as stream:
        await stream.send(HELLO + b"T one\n")
        assert (await stream.receive()).startswith(b"OK")
        await there.drain(60_000)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
    assert (ReadState.WAITING, ReadState.BUSY) in moves


async def test_answers_of_several_tickets_are_one_write(moves: set[tuple[Enum, Enum]]) -> None:
    """What is pushed while a task is about to send is sent by that task."""
    peers: list[Peer] = []

    def pushes(request: Command, peer: Peer) -> Outcome:
        peers.append(peer)
        return answer(request)

    async with served({ECHO: Handler(pushes)}) as there, there.client() as client:
        await client.ask(numbered(ECHO))
        for code in (1, 2, 3):
            assert peers[0].push(Command(code=code))
        assert [(await client.receive()).code for _ in range(3)] == [1, 2, 3]
    assert (WriteState.IDLE, WriteState.REQUESTED) in moves
    assert (WriteState.REQUESTED, WriteState.SENDING) in moves
