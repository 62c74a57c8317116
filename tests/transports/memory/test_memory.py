"""The memory transport: the contract of transports, and properties of its single loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

from rmqkit.plugin.transport import Address, Transport
from rmqkit.testing.listening import Listening
from rmqkit.testing.transport import TransportContract
from rmqkit_transport_memory.memory import CAPACITY_BYTES, MemoryTransport

NAME = Address("memory", name="test")


class TestMemory(TransportContract):
    """The contract with a named address."""

    backends = ()

    def make_transport(self, directory: Path) -> Transport:
        return MemoryTransport()

    def where(self, directory: Path) -> Address:
        return NAME


class TestMemoryWithPorts(TestMemory):
    """The contract with a numbered address."""

    def where(self, directory: Path) -> Address:
        return Address("memory", "127.0.0.1", 0)

    async def test_free_numbers_leave_room_below(self, at: Listening, transport: Transport) -> None:
        """A broker's fast port is two below its port."""
        (below,) = await transport.listen(Address("memory", "127.0.0.1", at.address.port - 2))
        await below.aclose()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_another_loop_is_refused(backend: str) -> None:
    """A connection between different event loops is refused at once."""
    (listener,) = await MemoryTransport().listen(NAME)
    async with listener:
        connect = partial(anyio.run, MemoryTransport().connect, NAME, 1_000, backend=backend)
        with pytest.raises(ConnectionRefusedError, match="another event loop"):
            await trio.to_thread.run_sync(connect)


async def test_a_listener_that_closes_refuses_those_that_wait() -> None:
    """Waiting connects are refused when the listener closes."""
    (listener,) = await MemoryTransport().listen(NAME)
    with pytest.RaisesGroup(pytest.RaisesExc(ConnectionRefusedError, match="has no listener")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(MemoryTransport().connect, NAME, 1_000)
            await trio.testing.wait_all_tasks_blocked()
            await listener.aclose()


async def test_a_direction_holds_so_much() -> None:
    """A full direction blocks the sender until a byte is read."""
    (listener,) = await MemoryTransport().listen(NAME)
    async with listener, trio.open_nursery() as nursery:
        accepted = trio.Event()

        async def read_one() -> None:
            async with await listener.accept() as server:
                await accepted.wait()
                assert await server.receive_some(1) == b"x"
                await trio.sleep_forever()

        nursery.start_soon(read_one)
        client = await MemoryTransport().connect(NAME, 1_000)
        await client.send(b"x" * CAPACITY_BYTES)
        with trio.move_on_after(0) as waited:
            await client.send(b"y")
        assert waited.cancelled_caught
        accepted.set()
        await client.send(b"y")
        nursery.cancel_scope.cancel()
