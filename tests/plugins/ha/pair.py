"""A master and a slave in one loop, over memory pipes, and what their tests ask of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import trio
from anyio.abc import ByteStream

from rmqkit.broker.run.running import RunningBroker
from rmqkit.plugin.replication import ReplicaGroup
from rmqkit.plugin.role import Role
from rmqkit.plugin.store import MessageStore
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import SendMessageRequestHeader
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit_ha.master import HaMaster
from rmqkit_ha.slave import HaSlave

#: A condition of a test has this long to come true.
PATIENCE_S = 60
#: Small files, so that a few messages fill several.
SMALL = {"mappedFileSizeCommitLog": 131_072, "maxMessageSize": 16_384}
TOPIC = "TopicTest"


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    with trio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - the conditions have no events
            await trio.sleep(0.001)


@asynccontextmanager
async def running_master(directory: Path, **keys: Any) -> AsyncIterator[RunningBroker]:
    """A master that serves slaves over memory pipes, SYNC_MASTER unless `brokerRole` is given."""
    defaults: dict[str, Any] = {
        "brokerName": "pair",
        "brokerRole": "SYNC_MASTER",
        "plugins.ha.listen": "memory://127.0.0.1:0",
    }
    async with running_broker(directory, scheme="memory", **(SMALL | defaults | keys)) as broker:
        yield broker


@asynccontextmanager
async def running_slave(directory: Path, master: RunningBroker, **keys: Any) -> AsyncIterator[RunningBroker]:
    """A slave of a running master. It copies the tables every second, and connects again after a
    hundredth."""
    defaults: dict[str, Any] = {
        "brokerName": "pair",
        "brokerRole": "SLAVE",
        "brokerId": 1,
        "haMasterAddress": master.context.replication.own,
        "plugins.ha.masterAddress": master.context.address,
        "plugins.ha.retryIntervalMs": 10,
        "plugins.ha.tablesIntervalMs": 10,
    }
    async with running_broker(directory, scheme="memory", **(SMALL | defaults | keys)) as broker:
        yield broker


@asynccontextmanager
async def running_member(directory: Path, name: str, **keys: Any) -> AsyncIterator[RunningBroker]:
    """A fenced member of an elected group; the test is the elector."""
    defaults: dict[str, Any] = {
        "brokerName": "group",
        "brokerRole": "SYNC_MASTER",
        "plugins.ha.listen": "memory://127.0.0.1:0",
        "slaveTimeout": 60_000,
        "plugins.ha.elected": True,
        "plugins.ha.memberName": name,
        "plugins.ha.retryIntervalMs": 10,
        "plugins.ha.tablesIntervalMs": 10,
    }
    async with running_broker(directory, scheme="memory", **(SMALL | defaults | keys)) as broker:
        yield broker


def group_of(broker: RunningBroker) -> ReplicaGroup:
    """The elected group of a member."""
    found = broker.context.replication.group
    assert found is not None
    return found


async def lead(broker: RunningBroker, epoch: int, *others: str, until_s: float = inf) -> None:
    """Elect a member; the members named `others` must have each message."""
    await broker.context.role.set(Role.MASTER, epoch, until_s)
    if others:
        group = group_of(broker)
        group.set_in_sync({group.name, *others})


async def follow(broker: RunningBroker, master: RunningBroker, epoch: int) -> None:
    """Make a member a slave of another one."""
    broker.context.replication.assign(master.context.address, master.context.replication.own)
    await broker.context.role.set(Role.SLAVE, epoch)


def ha_master(broker: RunningBroker) -> HaMaster:
    """The service of a master."""
    found = broker.context.registry.services["ha-master"]
    assert isinstance(found, HaMaster)
    return found


def ha_slave(broker: RunningBroker) -> HaSlave:
    """The service of a slave."""
    found = broker.context.registry.services["ha-slave"]
    assert isinstance(found, HaSlave)
    return found


async def linked(master: RunningBroker, slaves: int = 1) -> None:
    """Wait until slaves are connected."""
    await until(lambda: len(ha_master(master).replicas.connected) == slaves)


async def caught_up(master: RunningBroker, *slaves: RunningBroker) -> None:
    """Wait until the logs of the slaves end where the master's does."""
    end = master.context.store.end_offset
    await until(lambda: all(slave.context.store.end_offset == end for slave in slaves))


def send_request(body: bytes, properties: str = "", topic: str = TOPIC) -> Command:
    """A send to queue 0."""
    header = SendMessageRequestHeader(
        producer_group="producers", topic=topic, queue_id=0, properties=properties or None
    )
    return request(RequestCode.SEND_MESSAGE, header, body)


async def send(broker: RunningBroker, *bodies: bytes, properties: str = "") -> list[Command]:
    """Send messages one after the other; returns the answers."""
    async with calling_broker(broker) as call:
        return [await call(send_request(body, properties)) for body in bodies]


def raw_log(store: MessageStore, start: int | None = None) -> bytes:
    """The bytes of the log from an offset on, by default from its start."""
    parts, at = [], store.start_offset if start is None else start
    with store.blocking_reads():
        while at < store.end_offset:
            parts.append(bytes(store.read_log(at, 1 << 20)))
            assert parts[-1], f"the log cannot be read at {at}"
            at += len(parts[-1])
    return b"".join(parts)


@asynccontextmanager
async def dialed(broker: RunningBroker) -> AsyncIterator[ByteStream]:
    """A connection to the replication port of a master."""
    address = Address.parse(broker.context.replication.own)
    async with await broker.context.registry.transport(address).connect(address, 10_000) as stream:
        yield stream
