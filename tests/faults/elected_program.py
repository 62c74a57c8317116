"""A member of an elected group in a process of its own: `elected_program.py NAME STORE PORT`, in its
directory.

Its elector is whoever writes to its standard input: a JSON list per line, a method of `Orders` and its
arguments. Each gets a line of JSON on the standard output, after a first line with the member's addresses.
Deadlines are those of `time.monotonic`, which all processes share. The input's end stops the broker.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import RmqError
from rmqkit.plugin.role import Role
from rmqkit.testing.broker import running_broker

SETTINGS: dict[str, Any] = {
    "brokerName": "group",
    "brokerRole": "SYNC_MASTER",
    "disabledServices": "retention",
    "haListenPort": 0,
    "haSendHeartbeatInterval": 200,
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 65_536,
    "slaveTimeout": 500,
    "plugins.ha.elected": True,
    "plugins.ha.retryIntervalMs": 20,
    "plugins.ha.tablesIntervalMs": 100,
}


class Orders:
    """The orders of the elector. Each returns what is answered."""

    def __init__(self, broker: RunningBroker) -> None:
        self._role = broker.context.role
        self._replication = broker.context.replication
        assert self._replication.group is not None
        self._group = self._replication.group

    async def lead(self, epoch: int, until_s: float) -> str:
        return await self._set(Role.MASTER, epoch, _own_time(until_s))

    async def follow(self, epoch: int, master: str, master_ha: str) -> str:
        self._replication.assign(master, master_ha)
        return await self._set(Role.SLAVE, epoch)

    async def _set(self, role: Role, epoch: int, *until_s: float) -> str:
        try:
            await self._role.set(role, epoch, *until_s)
        except RmqError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def in_sync(self, *names: str) -> str:
        await trio.lowlevel.checkpoint()
        self._group.set_in_sync(set(names))
        return ""

    async def state(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        members = self._group.members()
        return {
            "is_fenced": self._role.is_fenced,
            "end": self._group.log_end(),
            "caught_up": sorted(name for name in members if members[name].is_caught_up),
        }


def _own_time(monotonic_s: float) -> float:
    return trio.current_time() + monotonic_s - time.monotonic()


async def main(name: str, store: str, port: str) -> None:
    keys = SETTINGS | {"store": store, "listenPort": int(port), "plugins.ha.memberName": name}
    async with running_broker(Path("data"), scheme="tcp", **keys) as broker:
        orders = Orders(broker)
        _say([broker.context.address, broker.context.replication.own])
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            method, *arguments = json.loads(line)
            _say(await getattr(orders, method)(*arguments))


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
