"""`rmqkit doctor` against servers."""

from __future__ import annotations

import json
import threading
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

from rmqkit.client import BlockingClient
from tests.cli.conftest import Ready, Run, Start, Verbs, until
from tests.ports import free_port

#: How full the disk of the machine is has nothing to do with these tests.
_DOCTOR = ("doctor", "--interval", "0.01", "--ignore", "full-disk")
_WHERE = ("--data", "data", "--broker", "127.0.0.1:0", "--set", "store=memory")


def findings(verbs: Verbs, *words: str, code: int | None = 1) -> dict[str, Any]:
    """Check -> finding; the exit code says whether there are any, and None takes either."""
    ended = verbs.ended(*_DOCTOR, "--json", *words, code=None)
    assert code is None or ended.returncode == code, ended.stdout
    found = json.loads(ended.stdout)
    return {each["check"]: each for each in found}


def test_nothing_is_wrong(verbs: Verbs, client: BlockingClient) -> None:
    """A cluster with a consumer that keeps up: exit code 0."""
    client.admin.create_topic("Orders", queues=1)
    with client.push_consumer("billing", subscribe={"Orders": "*"}):
        until(lambda: client.groups.connections("billing"))
        assert findings(verbs, "--topic", "Orders", code=0) == {}
        assert verbs.text(*_DOCTOR) == "nothing found\n"


def test_unreachable_name_servers(rmqkit: Run, verbs: Verbs, server: Ready) -> None:
    """One of several, and all of them."""
    there = server.where["namesrv"]
    dead = f"127.0.0.1:{free_port()}"
    one = rmqkit(*_DOCTOR, "--namesrv", f"{there};{dead}")
    assert one.returncode == 1
    assert f"unreachable-name-server ({dead})" in one.stdout
    assert "  to do: start it" in one.stdout
    none = rmqkit(*_DOCTOR, "--namesrv", dead)
    assert (none.returncode, none.stdout.count("unreachable-name-server")) == (1, 1)


def test_an_address_that_speaks_http(rmqkit: Run) -> None:
    """A name server's address where a web server answers."""

    class Web(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), Web) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        ended = rmqkit(*_DOCTOR, "--namesrv", f"127.0.0.1:{web.server_address[1]}")
        web.shutdown()
        thread.join()
    assert ended.returncode == 1
    assert "it speaks HTTP, not RocketMQ" in ended.stdout
    assert "  to do: something else answers there: correct --namesrv" in ended.stdout


def test_brokers_that_are_missing(start: Start, rmqkit: Run) -> None:
    """A name server without brokers; a broker that advertises an address where it does not listen."""
    namesrv = start("namesrv", "--listen", "127.0.0.1:0")
    verbs = Verbs(rmqkit, namesrv)
    assert findings(verbs).keys() == {"no-broker"}
    start("broker", "--namesrv", namesrv.where["namesrv"], *_WHERE, "--set", "brokerIP1=127.0.0.2")
    (found,) = findings(verbs).values()
    assert (found["check"], found["subject"]) == ("unreachable-broker", "broker-a")
    assert "127.0.0.2:" in found["text"]


def test_a_master_without_its_replica(start: Start, rmqkit: Run) -> None:
    """A master that waits for a second copy, which nobody has. With --wait the exit code is 0 once the
    slave has joined, and 1 when the time is over."""
    namesrv = start("namesrv", "--listen", "127.0.0.1:0")
    verbs = Verbs(rmqkit, namesrv)
    words = ("--namesrv", namesrv.where["namesrv"], "--broker", f"127.0.0.1:{free_port(-2, 1)}")
    start("broker", *words, "--data", "master", "--set", "brokerRole=SYNC_MASTER")
    for waiting in ((), ("--wait", "0.01")):
        (found,) = findings(verbs, *waiting).values()
        assert (found["check"], found["subject"]) == ("missing-replica", "broker-a")
        assert found["text"] == "1 of 2 copies are in sync, its own included"
    words = ("--namesrv", namesrv.where["namesrv"], "--broker", f"127.0.0.1:{free_port(-2, 1)}")
    start("broker", *words, "--data", "slave", "--set", "brokerRole=SLAVE", "--set", "brokerId=1")
    assert findings(verbs, "--wait", "120", code=0) == {}


def test_topics_and_brokers(start: Start, rmqkit: Run) -> None:
    """A topic without a route where topics are not created by themselves, a topic that cannot be written, a
    broker that is read-only."""
    words = ("--set", "autoCreateTopicEnable=false", "--set", "brokerPermission=4")
    server = start("serve", "--namesrv", "127.0.0.1:0", *_WHERE, *words)
    verbs = Verbs(rmqkit, server)
    verbs.text("topic", "create", "Archive", "--perm", "4")
    found = findings(verbs, "--topic", "Nowhere", "--topic", "Archive")
    assert found.keys() == {"no-route", "read-only-topic", "read-only-broker"}
    assert "autoCreateTopicEnable is off on broker-a" in found["no-route"]["text"]
    assert "rmqkit topic create Nowhere" in found["no-route"]["advice"]
    rest = findings(verbs, "--topic", "Archive", "--ignore", "read-only-broker")
    assert rest.keys() == {"read-only-topic"}


def test_groups(verbs: Verbs, server: Ready, client: BlockingClient) -> None:
    """A group that nobody consumes, members with unequal subscriptions, and an unknown group."""
    client.admin.create_topic("Orders", queues=1)
    with client.producer("p") as producer, client.pull_consumer("left") as consumer:
        producer.send("Orders", b"one")
        (queue,) = consumer.queues("Orders")
        until(lambda: consumer.max_offset(queue) == 1)
        until(lambda: client.groups.connections("left"))
        consumer.commit(queue, 0)
    with (
        BlockingClient(server.where["namesrv"], instance_name="other") as other,
        client.push_consumer("mixed", subscribe={"Orders": "new"}),
        other.push_consumer("mixed", subscribe={"Orders": "paid"}),
    ):

        def both_online() -> bool:
            online = client.groups.connections("mixed")
            return online is not None and len(online.members) == 2

        until(both_online)
        found = findings(verbs, "--group", "left", "--group", "mixed", "--group", "nobody")
    assert found["no-consumer"]["subject"] == "left"
    unequal = found["unequal-subscriptions"]
    assert unequal["subject"] == "mixed"
    assert "TAG new" in unequal["text"]
    assert "TAG paid" in unequal["text"]
    assert found["unknown-group"]["subject"] == "nobody"
