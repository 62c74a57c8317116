"""The program of a broker process, in this process and started without a parent."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from rmqkit.config import Config
from rmqkit.supervisor import child
from rmqkit.supervisor.channel import Channel, Cut, Message, Ready, Stop
from rmqkit.supervisor.process import launch
from rmqkit.testing.broker import test_config as config_for_tests


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    """Undo the freezing of objects by the broker's start, because the process of the tests continues."""
    yield
    gc.unfreeze()


@asynccontextmanager
async def running_child(config: Config) -> AsyncIterator[tuple[Channel, trio.Event]]:
    """The parent's end of the channel, and an event for the child's end."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    ended = trio.Event()

    async def run() -> None:
        await child.serve(config, theirs, None, trio.Event())
        await theirs.aclose()
        ended.set()

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield ours, ended
            await ended.wait()
    await ours.aclose()


@pytest.mark.parametrize("word", [Stop(), Cut()])
async def test_it_serves_until_it_is_told(tmp_path: Path, word: Message) -> None:
    """The reported address accepts connections until the child is told to stop."""
    async with running_child(config_for_tests(tmp_path)) as (parent, ended):
        ready = await parent.receive()
        assert isinstance(ready, Ready)
        host, port = ready.address.rsplit(":", 1)
        await (await trio.open_tcp_stream(host, int(port))).aclose()
        assert not ended.is_set()
        await parent.send(word)
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(host, int(port))


async def test_it_stops_when_the_parent_has_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The end of the channel stops the child and is logged; after a message to stop it is expected and not
    logged."""
    async with running_child(config_for_tests(tmp_path)) as (parent, _):
        assert isinstance(await parent.receive(), Ready)
        await parent.aclose()
    assert "the parent process has ended" in caplog.text
    caplog.clear()
    async with running_child(config_for_tests(tmp_path)) as (parent, _):
        assert isinstance(await parent.receive(), Ready)
        await parent.send(Stop())
        await parent.aclose()
    assert "the parent process has ended" not in caplog.text


async def test_a_start_that_takes_long_can_be_given_up(tmp_path: Path) -> None:
    """A start that waits for a name server that never answers can be aborted."""
    connected = trio.Event()

    async def never_answer(stream: trio.SocketStream) -> None:
        connected.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, never_answer, 0, host="127.0.0.1")
        )
        port = listeners[0].socket.getsockname()[1]
        async with running_child(config_for_tests(tmp_path, namesrvAddr=f"127.0.0.1:{port}")) as (parent, _):
            await connected.wait()
            await parent.send(Stop())
            assert await parent.receive() is None
        nursery.cancel_scope.cancel()


async def test_a_process_with_nobody_to_talk_to_ends(tmp_path: Path) -> None:
    """If the parent dies before it sends the settings, the child ends without an error."""
    process = await launch(config_for_tests(tmp_path))
    await process.aclose()
    with trio.fail_after(300):
        assert await process.wait() == 0
