"""The contract of transports finds the fault of broken transports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.transport import Address, ServerStream, Transport
from rmqkit.testing.listening import listening
from rmqkit.testing.transport import PARTS, TransportContract
from rmqkit_transport_memory.memory import MemoryListener, MemoryServerStream, MemoryTransport


class Changed(MemoryTransport):
    """A transport whose accepted streams are of another class."""

    stream: type[MemoryServerStream] = MemoryServerStream

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        (listener,) = await super().listen(address, alpn)
        assert isinstance(listener, MemoryListener)
        accept = listener.accept

        async def changed() -> MemoryServerStream:
            stream = await accept()
            assert isinstance(stream, MemoryServerStream)
            stream.__class__ = self.stream
            return stream

        listener.accept = changed  # type: ignore[method-assign]
        return [listener]


class Reorders(MemoryServerStream):
    """Sends the parts of an answer in another order."""

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        await super().send_parts(parts[::-1])


class Repeats(MemoryServerStream):
    """Says that it has taken nothing, and has taken it."""

    def send_now(self, data: Buffer) -> int:
        super().send_now(data)
        return 0


class Elsewhere(MemoryTransport):
    """Listens at another address than the one it is given."""

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        return await super().listen(Address("memory", name=f"{address.name}-elsewhere"), alpn)


class Contract(TransportContract):
    """The contract over one transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def make_transport(self, directory: Path) -> Transport:
        return self._transport

    def where(self, directory: Path) -> Address:
        return Address("memory", name="faults")


def changed(stream: type[MemoryServerStream]) -> Contract:
    """The contract over a transport with these streams."""
    transport = Changed()
    transport.stream = stream
    return Contract(transport)


async def test_streams_that_break_a_rule_are_found(tmp_path: Path) -> None:
    """Parts in another order, and bytes that are taken twice; the streams without these faults pass."""
    for stream in (MemoryServerStream, Reorders, Repeats):
        contract = changed(stream)
        transport = contract.make_transport(tmp_path)
        async with listening(transport, contract.where(tmp_path)) as at:
            rules = {
                Reorders: partial(contract.test_parts_arrive_whole_and_in_order, at, PARTS["small"]),
                Repeats: partial(contract.test_what_goes_without_waiting, at, 10_000),
            }
            for broken, rule in rules.items():
                if stream is broken:
                    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
                        await rule()
                else:
                    await rule()


async def test_a_listener_at_another_address_is_found(tmp_path: Path) -> None:
    """A broker announces where it was told to listen."""
    contract = Contract(Elsewhere())
    transport = contract.make_transport(tmp_path)
    async with listening(transport, contract.where(tmp_path)) as at:
        with pytest.raises(AssertionError):
            await contract.test_a_listener_knows_where_it_is(at, transport, tmp_path)


async def test_a_listener_that_takes_an_address_twice_is_found(tmp_path: Path) -> None:
    """Two servers at one address would each get a part of the connections."""

    class Twice(MemoryTransport):
        async def listen(
            self, address: Address, alpn: Sequence[str] = ()
        ) -> Sequence[trio.abc.Listener[ServerStream]]:
            return [MemoryListener(address)]

    contract = Contract(Twice())
    transport = contract.make_transport(tmp_path)
    async with listening(transport, contract.where(tmp_path)) as at:
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            await contract.test_an_address_is_taken_once(at, transport)
