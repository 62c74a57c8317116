"""From Apache's master to one of rmqkit, as docs/operate/from_apache.md describes: nothing is lost, groups
go on where they were, and Apache's broker follows in the end, as a way back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import trio

from rmqkit.client import Client, MessageQueue, Producer, ReceivedMessage, RmqError, SendStatus
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.record import unpack_all
from tests.interop import peers
from tests.interop.builds import SERVER_VERSION
from tests.interop.members import PATIENCE_S, made, until
from tests.interop.test_replication import LOG_FILE_BYTES, NO_TLS, our_broker, our_namesrv
from tests.ports import LOOPBACK

TOPIC, GROUP = "Moving", "movers"
#: What both brokers of a name have in common.
COMMON: Mapping[str, object] = {
    "brokerName": "moved",
    "haSendHeartbeatInterval": 500,
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "maxMessageSize": 65_536,
}
MASTER: Mapping[str, object] = {**COMMON, "brokerRole": "ASYNC_MASTER"}
SLAVE: Mapping[str, object] = {**COMMON, "brokerRole": "SLAVE", "brokerId": 1}


def _log(store: Path) -> bytes:
    files = sorted((store / "commitlog").glob("*[0-9]"))
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


async def _equal(first: Path, second: Path) -> bytes:
    async def holds() -> bool:
        found = await trio.to_thread.run_sync(lambda: (_log(first), _log(second)))
        return found[0] == found[1] != b""

    await until(holds, "equal logs")
    return _log(first)


async def _sent(producer: Producer, stem: str, count: int) -> set[bytes]:
    """Messages that were answered with SEND_OK; the first is tried until there is a master."""

    async def stored() -> bool:
        try:
            return (await producer.send(TOPIC, stem.encode())).status is SendStatus.SEND_OK
        except RmqError:
            return False

    await until(stored, "a master that takes messages")
    bodies = {f"{stem} {number}".encode() for number in range(count)}
    for body in bodies:
        assert (await producer.send(TOPIC, body)).status is SendStatus.SEND_OK
    return bodies | {stem.encode()}


async def _consumed(client: Client, count: int) -> list[bytes]:
    """At least so many messages, as a member of the group gets them."""
    found: list[bytes] = []
    async with client.push_consumer(GROUP, subscribe={TOPIC: "*"}, start="first") as consumer:

        async def handle(message: ReceivedMessage) -> None:
            found.append(message.body)
            if len(found) >= count:
                consumer.stop()

        with trio.fail_after(PATIENCE_S):
            await consumer.run(handle)
    return found


async def _committed(client: Client) -> dict[MessageQueue, int]:
    progress = await client.groups.progress(GROUP, TOPIC)
    return {queue: each.committed for queue, each in progress.items()}


async def test_a_slave_of_ours_takes_the_place_of_apaches_master(tmp_path: Path) -> None:
    """rmqkit's name server and slave beside Apache's master; no more writes there; then rmqkit is the master,
    and Apache's broker its slave."""
    old_store, new_store, back_store = (tmp_path / name / "store" for name in ("old", "new", "back"))
    for store in (old_store, new_store, back_store):
        store.parent.mkdir()
    old_port, new_port = peers.free_broker_port(), peers.free_broker_port()
    with ExitStack() as last, our_namesrv(tmp_path) as namesrv:
        old = ExitStack()
        apache = old.enter_context(
            peers.apache_broker(
                old_store.parent, namesrv, port=old_port, store=old_store, settings=MASTER, options=NO_TLS
            )
        )
        last.callback(old.close)
        slave = ExitStack()
        slave.enter_context(our_broker(new_store.parent, new_store, namesrv, new_port, SLAVE))
        last.callback(slave.close)
        async with Client(namesrv) as client, client.producer("producers") as producer:
            await made(client, TOPIC, 2)
            bodies = await _sent(producer, "before", 40)
            first = await _consumed(client, 10)

            setting = peers.call(
                apache.broker, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n"
            )
            assert setting.code == ResponseCode.SUCCESS, setting.remark
            await _equal(old_store, new_store)
            committed = await _committed(client)
            assert sum(committed.values()) >= 1

            async def copied() -> bool:
                """Whether the slave has the group's offsets."""
                told = await trio.to_thread.run_sync(
                    peers.call, f"{LOOPBACK}:{new_port}", RequestCode.GET_ALL_CONSUMER_OFFSET
                )
                return f"{TOPIC}@{GROUP}".encode() in told.body

            await until(copied, "the group's offsets at the slave")
            await trio.to_thread.run_sync(old.close)
            await trio.to_thread.run_sync(slave.close)
            last.enter_context(our_broker(new_store.parent, new_store, namesrv, new_port, MASTER))
            bodies |= await _sent(producer, "after", 20)
            assert await _committed(client) == committed
            rest = await _consumed(client, len(bodies) - sum(committed.values()))
            assert set(first) | set(rest) == bodies

            last.enter_context(
                peers.apache_broker(
                    back_store.parent,
                    namesrv,
                    port=peers.free_broker_port(),
                    store=back_store,
                    settings=SLAVE,
                    version=SERVER_VERSION,
                    options=NO_TLS,
                )
            )
            log = await _equal(new_store, back_store)
            assert bodies <= {message.body for message in unpack_all(log)}
