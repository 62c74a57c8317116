"""The parent's side of one broker process."""

from __future__ import annotations

import socket
import sys

import trio

from rmqkit.config import Config
from rmqkit.supervisor.channel import Channel, Message
from rmqkit.supervisor.plan import label


class BrokerProcess:
    """A broker process that is controlled through a channel."""

    def __init__(self, process: trio.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel

    @property
    def pid(self) -> int:
        return self._process.pid

    async def tell(self, message: Message) -> None:
        """Send a message. Does nothing when the process has ended."""
        await self._channel.send(message)

    async def hear(self) -> Message | None:
        """The next message of the process; None when there are no more. When cancelled, no message is
        lost."""
        return await self._channel.receive()

    async def wait(self) -> int:
        """Wait for the end of the process. Returns its exit code, or the negative number of the signal that
        killed it."""
        return await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    async def aclose(self) -> None:
        """Close the channel, which makes a running process stop."""
        await self._channel.aclose()


async def launch(config: Config) -> BrokerProcess:
    """Start the program of a broker process, which waits for its first message. Raises OSError.

    The process has its own session, so that terminal signals (Ctrl-C, hang-up) reach only the parent, which
    then stops the brokers in order. `-P` keeps the working directory out of the import path, as in the
    parent. The broker's name is on the command line to be visible in `ps`.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "rmqkit.supervisor", label(config)],
                stdin=theirs,
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return BrokerProcess(process, Channel(ours))
