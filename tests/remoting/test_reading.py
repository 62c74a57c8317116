"""How much a served connection reads at a time."""

from __future__ import annotations

import pytest

from rmqkit.protocol.command import request
from rmqkit.remoting import unfinished
from rmqkit.remoting.reading import FIRST_CHUNK_BYTES
from rmqkit.toolkit.sockets import SocketStream
from tests.remoting.parts import ECHO, echo
from tests.remoting.test_joined_run import linux
from tests.remoting.wire import Handler, served

BODY = bytes(FIRST_CHUNK_BYTES * 4)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The largest sizes that were asked for, one for each read."""
    sizes: list[int] = []
    receive_now = SocketStream.receive_now

    def noting(stream: SocketStream, max_bytes: int) -> bytes | bytearray | None:
        sizes.append(max_bytes)
        return receive_now(stream, max_bytes)

    monkeypatch.setattr(SocketStream, "receive_now", noting)
    return sizes


async def large_requests(count: int, unfinished_elsewhere: int = 0) -> None:
    """Requests one after the other, while other connections have so many bytes of unfinished frames."""
    async with served({ECHO: Handler(echo)}) as there, there.client() as client:
        there.server.context.unfinished.total += unfinished_elsewhere
        for opaque in range(count):
            assert (await client.ask(request(ECHO, opaque=opaque, body=BODY))).body == BODY


@linux
async def test_reads_stay_large_from_one_large_request_to_the_next(reads: list[int]) -> None:
    """Requests of tens of kilobytes, as batches are, come with few reads."""
    await large_requests(1)
    grown = max(reads)
    assert grown > FIRST_CHUNK_BYTES
    reads.clear()
    await large_requests(6)
    assert reads.count(FIRST_CHUNK_BYTES) <= 2, reads


@linux
async def test_a_request_begins_with_a_small_read_while_memory_is_scarce(
    reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First reads do not wait for memory, so that they must not take much of it."""
    monkeypatch.setattr(unfinished, "FREELY_READ_UNFINISHED_BYTES", 1)
    await large_requests(6, unfinished_elsewhere=1)
    assert reads.count(FIRST_CHUNK_BYTES) >= 6, reads
