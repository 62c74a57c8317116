"""A broker in a process of its own, to be killed: python -m tests.broker.counting_broker DIRECTORY STORE
SCHEME.

Its plugin counts messages by topic in a file there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.dispatcher import DispatchEntry, LogFollower
from rmqkit.plugin.hookspecs import Register
from rmqkit.testing.broker import running_broker
from tests.counting import Counter

SAVED_EVERY = 20


class SavingCounter(Counter):
    """Saves after a fixed number of messages, so that a test knows the content of the file without a
    clock."""

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        for entry in entries:
            super().dispatch([entry])
            if self.counts.total() % SAVED_EVERY == 0:
                self.save()

    async def run(self) -> None:
        await trio.sleep_forever()


class Plugin:
    @hookimpl
    def rmqkit_register_dispatchers(self, register: Register[LogFollower], config: Config) -> None:
        register("counter", SavingCounter(config.root_path))


async def main(*words: str) -> None:
    directory, store, scheme = words
    async with running_broker(
        Path(directory), extra=[("counting", Plugin())], store=store, scheme=scheme
    ) as running:
        sys.stdout.write(f"{running.address}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
