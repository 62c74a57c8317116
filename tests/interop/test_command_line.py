"""The verbs for groups, messages and dead letters against Apache's own server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.client import BlockingClient, DeadLetter, ReceivedMessage
from tests.interop import peers
from tests.interop.builds import OLD_SERVER_VERSION, SERVER_VERSION, BuildError
from tests.programs import run

PATIENCE_S = 120


@pytest.fixture(scope="module", params=[SERVER_VERSION, OLD_SERVER_VERSION])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[peers.Server]:
    """Apache's servers of two generations."""
    try:
        with peers.apache_cluster(tmp_path_factory.mktemp("servers"), version=request.param) as server:
            yield server
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_groups_messages_and_dead_letters(servers: peers.Server, tmp_path: Path) -> None:
    """Lag, members, offsets with and without members, a message by its ids, dead letters sent again, and what
    the doctor finds."""

    def verb(*words: str, code: int | None = 0) -> Any:
        ended = run([*words, "--json", "--namesrv", servers.namesrv], tmp_path)
        assert code in (None, ended.returncode), (words, ended.stderr)
        return json.loads(ended.stdout)

    handled: list[bytes] = []

    async def refuse_two(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if message.body == b"two":
            raise DeadLetter("a test")

    with BlockingClient(servers.namesrv) as client:
        client.admin.create_topic("Orders", queues=1)
        with client.producer("p") as producer:
            one = producer.send("Orders", b"one", tag="new", keys=["k"])
            producer.send("Orders", b"two", tag="new")
        consumer = client.push_consumer("billing", subscribe={"Orders": "*"}, start="first")
        thread = threading.Thread(target=consumer.run, args=(refuse_two,))
        thread.start()
        until(lambda: len(handled) == 2)
        until(lambda: client.groups.connections("billing"))
        (member,) = verb("group", "connections", "billing")["members"]
        assert (member["clientId"], member["language"]) == (client.client_id, "PYTHON")
        assert "billing" in {each["group"] for each in verb("group", "list")}
        until(lambda: client.groups.progress("billing", "Orders"))
        until(lambda: verb("group", "lag", "billing", "--topic", "Orders")["lag"] == 0)
        verb("group", "reset", "billing", "Orders", "--to", "first")
        until(lambda: len(handled) >= 4)
        until(lambda: any(each["messages"] for each in verb("dlq", "list")))
        consumer.stop()
        thread.join()
        until(lambda: client.groups.connections("billing") is None)

        (queue,) = verb("group", "reset", "billing", "Orders", "--to", "first")["queues"]
        assert queue["after"] == 0
        assert verb("group", "lag", "billing", "--topic", "Orders")["lag"] == 2
        where = f"{queue['brokerName']}:0"
        verb("group", "reset", "billing", "Orders", "--offset", "1", "--queue", where)
        assert verb("group", "lag", "billing", "--topic", "Orders")["lag"] == 1

        for words in ((one.message_id, "--topic", "Orders"), (one.offset_message_id,)):
            (found,) = verb("message", "get", *words)
            assert found["body"] == "one"
            assert {"group": "billing", "state": "consumed", "committed": 1, "online": False} in found[
                "consumers"
            ]
        sent = verb("dlq", "resend", "billing", "--all")
        assert (sent["sent"] >= 1, sent["failed"]) == (True, 0)
        assert verb("dlq", "resend", "billing", "--all")["sent"] == 0
        (end,) = [at.max_offset for at in client.admin.topic_stats("Orders").values()]
        assert end == 2 + sent["sent"]
        checks = {each["check"] for each in verb("doctor", "--topic", "Nowhere", code=1)}
        assert {"no-route", "no-consumer"} <= checks
        assert not checks & {"clock-skew", "unreachable-broker", "unreachable-name-server"}
        verb("group", "delete", "billing", "--yes")
        assert "billing" not in client.groups.configs()
