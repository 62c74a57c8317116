"""The messages between a parent and its broker processes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rmqkit import config as settings
from rmqkit.supervisor.channel import Channel, Cut, Failed, Message, Ready, Start, Stop


@asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    try:
        yield one, other
    finally:
        await one.aclose()
        await other.aclose()


async def test_all_messages_arrive_as_they_were() -> None:
    """Messages arrive unchanged, including settings with their sources and with keys that only plugins
    know."""
    config = settings.load(
        environ={"RMQKIT_BROKER_IP1": "10.0.0.1"},
        flags={
            "brokerName": "broker-b",
            "disabledPlugins": "delay,filter",
            "acme": {"level": 3, "names": ["x", "ü\n"]},
            "retries": 1.5,
            "plugins.audit.password": "not masked here",
        },
    )
    messages: list[Message] = [
        Start(config),
        Stop(),
        Cut(),
        Ready("127.0.0.1:1"),
        Failed(("one\ntwo", "three"), 2),
    ]
    async with two_ends() as (one, other):
        for message in messages:
            await one.send(message)
        received = [await other.receive() for _ in messages]
    assert received == messages
    start = received[0]
    assert isinstance(start, Start)
    assert start.config.described() == config.described()
    assert start.config.warnings == config.warnings


async def test_a_message_may_come_in_pieces() -> None:
    """A message is read completely, however the socket divides it."""
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    got: list[Message | None] = []
    with ours:
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                got.append(await channel.receive())

            nursery.start_soon(receive)
            for piece in (b'{"type":', b'"ready","address"', b':"h:1"}', b'\n{"type":"stop"}\n'):
                await trio.testing.wait_all_tasks_blocked()
                assert got == []
                ours.sendall(piece)
    got.append(await channel.receive())
    got.append(await channel.receive())
    await channel.aclose()
    assert got == [Ready("h:1"), Stop(), None]


async def test_the_other_end_has_gone() -> None:
    """If the other end is closed, sending raises no error, and receiving reports it."""
    async with two_ends() as (one, other):
        await one.send(Stop())
        await other.send(Ready("h:1"))
        await other.aclose()
        await one.send(Cut())
        assert await one.receive() in (Ready("h:1"), None)
        assert await one.receive() is None
