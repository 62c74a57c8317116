"""Timed messages in a store directory that moves between Apache's broker and ours."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, Message
from tests.faults.kit import read_all
from tests.interop import peers
from tests.interop.builds import SERVER_VERSION
from tests.interop.test_replication import NO_TLS, OURS, our_broker, our_namesrv

TOPIC = "Timed"
SETTINGS: Mapping[str, object] = {
    "brokerName": "timed",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 30_000,
    "mappedFileSizeTimerLog": 1 << 20,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "timerRollWindowSlot": 30,
    "maxMessageSize": 65_536,
    "defaultTopicQueueNums": 1,
}
PATIENCE_S = 240
#: When messages are due, in seconds after they are sent: during the first run, later, beyond the window.
SOON, LATER, BEYOND = range(2, 5), range(20, 30), range(45, 50)
TIMES = (*SOON, *LATER, *BEYOND)


def serving(kind: str, home: Path, namesrv: str, port: int) -> AbstractContextManager[peers.Server]:
    if kind == OURS:
        return our_broker(home, home / "store", namesrv, port, SETTINGS)
    return peers.apache_broker(
        home, namesrv, port=port, store=home / "store", settings=SETTINGS, version=kind, options=NO_TLS
    )


async def send(client: Client) -> None:
    """Messages for all times, and one that another one deletes."""
    async with client.producer("senders") as producer:
        await producer.send(Message(TOPIC, b"at once"))
        begin_ms = int(time.time() * 1000)
        for second in TIMES:
            due = {"TIMER_DELIVER_MS": str(begin_ms + second * 1000)}
            await producer.send(Message(TOPIC, b"%d" % second, properties=due))
        due = {"TIMER_DELIVER_MS": str(begin_ms + 25_000)}
        sent = await producer.send(Message(TOPIC, b"deleted", properties=due))
        # Apache's broker 5.5 expects the topic before the key only with appendTopicForTimerDeleteKey.
        key = {"TIMER_DEL_UNIQKEY": sent.message_id}
        await producer.send(Message(TOPIC, b"deletion", properties=due | key))


async def received(client: Client, wanted: int) -> Counter[bytes]:
    """The bodies of the topic, once there are so many; none is early."""
    with trio.fail_after(PATIENCE_S):
        while True:
            messages = [each for queue in (await read_all(client, TOPIC)).values() for each in queue]
            if len({message.body for message in messages}) >= wanted:
                break
            await trio.sleep(0.5)
    for message in messages:
        if (due := message.properties.get("TIMER_DELIVER_MS")) is not None:
            assert message.store_timestamp_ms >= int(due)
    return Counter(message.body for message in messages)


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("kinds", [(SERVER_VERSION, OURS), (OURS, SERVER_VERSION)], ids="-then-".join)
async def test_timers_move_with_their_directory(kinds: tuple[str, str], end: str, tmp_path: Path) -> None:
    """Whoever has taken them in: each is delivered once by one of the two, none early, and one that was
    deleted by none. After a kill of Apache's broker, or a start of it, a slot may be delivered again."""
    port = peers.free_broker_port()
    first, second = kinds
    with our_namesrv(tmp_path) as namesrv:
        with serving(first, tmp_path, namesrv, port) as server:
            async with Client(namesrv) as client:
                await send(client)
                counts = await received(client, 1 + len(SOON))
            if end == "killed":
                server.programs[0].process.kill()
        with serving(second, tmp_path, namesrv, port):
            async with Client(namesrv) as client:
                counts = await received(client, 1 + len(TIMES))
    assert set(counts) == {b"at once", *(b"%d" % each for each in TIMES)}
    if end == "stopped":
        assert set(counts.values()) == {1}
