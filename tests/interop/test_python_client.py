"""RocketMQ's own Python client of version 5, over gRPC: each test is a program as an application writes
it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from rmqkit.client import BlockingClient
from tests.interop import peers

AUTHORITY = "authority.pem"
BEGIN = """
import sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer

configuration = ClientConfiguration(sys.argv[1], Credentials())
tls = {tls}


def message(topic, body, **more):
    made = Message()
    made.topic, made.body = topic, body
    for name, value in more.items():
        setattr(made, name, value)
    return made

"""


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """A server with a port for gRPC, which takes TLS as well."""
    folder = tmp_path_factory.mktemp("grpc")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / AUTHORITY)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "own.pem")
    arguments = ["--grpc", "127.0.0.1:0", "--set", f"tls.server.certPath={folder / 'own.pem'}"]
    arguments += ["--set", "transactionTimeOut=1000", "--set", "transactionCheckInterval=1000"]
    with peers.rmqkit_serve(folder, arguments=arguments) as server:
        yield server


def run(server: peers.Server, program: str, directory: Path, *, tls: bool = False) -> str:
    """The output of a program, which must succeed."""
    path = directory / "program.py"
    path.write_text(BEGIN.replace("{tls}", str(tls)) + program)
    roots = server.programs[0].log.parent / AUTHORITY
    done = subprocess.run(
        [sys.executable, str(path), server.grpc],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.tail()}"
    return done.stdout


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_it_sends_what_remoting_clients_read(door: peers.Server, tmp_path: Path, tls: bool) -> None:
    """With and without topics at the start, with and without TLS; tag, keys and properties arrive."""
    topic = f"Sent{tls}"
    program = f"""
for topics in (("{topic}",), None):
    producer = Producer(configuration, topics, tls_enable=tls)
    producer.startup()
    made = message("{topic}", b"hello", tag="new", keys="k1")
    made.add_property("colour", "green")
    print(producer.send(made).message_id)
    producer.shutdown()
"""
    ids = run(door, program, tmp_path, tls=tls).split()
    with (
        BlockingClient(door.namesrv) as client,
        client.lite_pull_consumer("readers", subscribe=topic, start="first") as consumer,
    ):
        found = [next(iter(consumer)) for _ in range(2)]
    assert sorted(each.message_id for each in found) == sorted(ids)
    assert {(each.tag, each.keys, each.properties["colour"]) for each in found} == {("new", ("k1",), "green")}


def test_simple_and_push_consumers(door: peers.Server, tmp_path: Path) -> None:
    """Messages in order of a group, with what the sender said of them; a failed one comes again."""
    program = """
import threading
from rocketmq import ConsumeResult, FilterExpression, MessageListener, PushConsumer, SimpleConsumer

producer = Producer(configuration, ("Eaten",))
producer.startup()
subscription = {"Eaten": FilterExpression("hot")}
simple = SimpleConsumer(configuration, "simple", subscription, 10)
simple.startup()
for number in range(4):
    tag = "hot" if number % 2 else "cold"
    producer.send(message("Eaten", b"%d" % number, tag=tag, keys="k", message_group="table-1"))
found = []
while len(found) < 2:
    for each in simple.receive(16, 30):
        found.append((each.body, each.tag, sorted(each.keys), each.message_group, each.delivery_attempt))
        simple.ack(each)
assert sorted(found) == [(b"1", "hot", ["k"], "table-1", 1), (b"3", "hot", ["k"], "table-1", 1)], found
simple.shutdown()


class Eating(MessageListener):
    done = threading.Event()
    seen = []

    def consume(self, each):
        self.seen.append((each.body, each.delivery_attempt))
        if each.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        self.done.set()
        return ConsumeResult.SUCCESS


push = PushConsumer(configuration, "push", Eating(), {"Eaten": FilterExpression("*")})
push.startup()
producer.send(message("Eaten", b"dessert"))
assert Eating.done.wait(60), Eating.seen
push.shutdown()
producer.shutdown()
print("done")
"""
    assert run(door, program, tmp_path) == "done\n"


def test_a_message_with_a_time_of_delivery(door: peers.Server, tmp_path: Path) -> None:
    """It comes at its time, not before."""
    program = """
import time
from rocketmq import FilterExpression, SimpleConsumer

producer = Producer(configuration, ("Later",))
producer.startup()
simple = SimpleConsumer(configuration, "later", {"Later": FilterExpression("*")}, 15)
simple.startup()
at = int(time.time()) + 3
producer.send(message("Later", b"later", delivery_timestamp=at))
(found,) = simple.receive(16, 30)
assert time.time() >= at
assert (found.body, found.delivery_timestamp) == (b"later", at * 1000), found
simple.ack(found)
simple.shutdown()
producer.shutdown()
print("done")
"""
    assert run(door, program, tmp_path) == "done\n"


def test_transactions(door: peers.Server, tmp_path: Path) -> None:
    """A committed message is delivered, one that was rolled back is not, and the outcome of one that nobody
    has ended is asked for."""
    program = """
import time
from rocketmq import FilterExpression, SimpleConsumer, TransactionChecker, TransactionResolution


class Checker(TransactionChecker):
    def check(self, asked):
        return TransactionResolution.COMMIT if asked.body == b"asked" else TransactionResolution.ROLLBACK


producer = Producer(configuration, ("Booked",), Checker())
producer.startup()
simple = SimpleConsumer(configuration, "bookers", {"Booked": FilterExpression("*")}, 15)
simple.startup()
for body in (b"kept", b"dropped", b"asked"):
    transaction = producer.begin_transaction()
    producer.send(message("Booked", body), transaction)
    if body == b"kept":
        transaction.commit()
    elif body == b"dropped":
        transaction.rollback()
found, deadline = [], time.time() + 60
while len(found) < 2 and time.time() < deadline:
    for each in simple.receive(16, 30):
        found.append(each.body)
        simple.ack(each)
assert sorted(found) == [b"asked", b"kept"], found
simple.shutdown()
producer.shutdown()
print("done")
"""
    assert run(door, program, tmp_path) == "done\n"
