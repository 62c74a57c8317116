"""The bridge of docs/operate/from_kafka.md between Kafka and rmqkit."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.peers import PeerError, running
from rmqkit.client import BlockingClient
from rmqkit.client.consumer.received import ReceivedMessage
from tests.interop import peers
from tests.programs import clean_environment

PAGE = Path(__file__).parent.parent.parent / "docs" / "operate" / "from_kafka.md"
LIMIT_S = 120
KEYS, RECORDS, PARTITIONS = [b"a", b"b", "\u7f16".encode(), None], 4_000, 3


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka of one node."""
    try:
        with running("kafka", {}, tmp_path_factory.mktemp("kafka")) as server:
            yield server.broker
    except PeerError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.rmqkit_serve(tmp_path_factory.mktemp("rmqkit")) as server:
        yield server


async def create(kafka: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    finally:
        await admin.close()


async def write(kafka: str, topic: str, numbers: Sequence[int]) -> None:
    """Records with each key in turn, the number as the body, and an empty one for number 8."""
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for number in numbers:
            value = None if number == 8 else b"%d" % number
            headers = [("trace", b"t%d" % number)]
            await producer.send(topic, value, key=KEYS[number % len(KEYS)], headers=headers)


@contextmanager
def bridge(directory: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program of the page; killed at the end."""
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    path = directory / "bridge.py"
    path.write_text(program)
    with (
        (directory / "bridge.out").open("ab") as out,
        subprocess.Popen(
            [sys.executable, str(path), *words], stdout=out, stderr=out, env=clean_environment()
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def stored(client: BlockingClient, topic: str) -> int:
    return sum(queue.max_offset for queue in client.admin.topic_stats(topic).values())


def wait_for(
    client: BlockingClient, topic: str, count: int, process: subprocess.Popen[bytes], said: Path
) -> None:
    """Wait until the topic has so many messages; the bridge has to run."""
    deadline = time.monotonic() + LIMIT_S
    while stored(client, topic) < count:
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()


def test_every_record_comes_once_and_in_the_order_of_its_key(
    kafka: str, server: peers.Server, tmp_path: Path
) -> None:
    """Also when the bridge is killed in the middle of its work, and continues."""
    topic, said = "FromKafka", tmp_path / "bridge.out"
    words = [kafka, server.namesrv, topic, "billing"]
    asyncio.run(create(kafka, topic))
    asyncio.run(write(kafka, topic, range(RECORDS)))
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic(topic, attributes="+dedup.window=24h,+dedup.key=kafka.place")
        with bridge(tmp_path, *words) as process:
            wait_for(client, topic, RECORDS // 4, process, said)
        assert stored(client, topic) < RECORDS
        with bridge(tmp_path, *words) as process:
            wait_for(client, topic, RECORDS, process, said)
            asyncio.run(write(kafka, topic, range(RECORDS, RECORDS + 10)))
            wait_for(client, topic, RECORDS + 10, process, said)
        assert stored(client, topic) == RECORDS + 10
        found: dict[str, list[int]] = {}
        for message in received(client, topic, RECORDS + 10):
            number = int(message.properties["header.trace"].removeprefix("t"))
            assert message.body == (b"-" if number == 8 else b"%d" % number)
            assert ("kafka.empty" in message.properties) == (number == 8)
            found.setdefault(str(KEYS[number % len(KEYS)]), []).append(number)
    assert {len(numbers) for numbers in found.values()} == {RECORDS // 4 + 3, RECORDS // 4 + 2}
    for key, numbers in found.items():
        if key != "None":
            assert numbers == sorted(numbers), key


def received(client: BlockingClient, topic: str, count: int) -> Iterator[ReceivedMessage]:
    """The messages of each queue, one queue after the other."""
    with client.pull_consumer("reader") as consumer:
        for queue in client.admin.topic_stats(topic):
            offset = 0
            while (page := consumer.pull(queue, offset)).messages:
                yield from page.messages
                offset = page.next_offset
