"""The parent's end of one broker process."""

from __future__ import annotations

import socket
import sys

import trio

from rmqkit.cli.brokers.channel import Channel, Message
from rmqkit.config import Config


class BrokerProcess:
    """A process that waits for, or runs with, what it is told."""

    def __init__(self, process: trio.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel

    @property
    def pid(self) -> int:
        return self._process.pid

    async def tell(self, message: Message) -> None:
        """Nothing happens when the process has ended."""
        await self._channel.send(message)

    async def hear(self) -> Message | None:
        """What the process says next; None when it says no more. Cancelled: nothing is lost."""
        return await self._channel.receive()

    async def wait(self) -> int:
        """Until it has ended; its exit code, or the negative number of the signal that killed it."""
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    async def aclose(self) -> None:
        """Close the channel, which tells a process that still runs to stop."""
        await self._channel.aclose()


async def launch(config: Config) -> BrokerProcess:
    """Start the program of a broker process; it does nothing until it is told. Raises OSError.

    It has its own session: what the terminal sends (Ctrl-C, hang-up) reaches the parent alone, which then stops its brokers in order. `-P` keeps
    the working directory out of the path of imports, as it is for the parent. The broker's name is on the command line for `ps` to show.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "rmqkit.cli.brokers", config.broker_name], stdin=theirs, start_new_session=True
            )
    except BaseException:
        ours.close()
        raise
    return BrokerProcess(process, Channel(ours))
