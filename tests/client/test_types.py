"""What type checkers know of values: mypy reads a small program of an application."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import msgspec
from rmqkit.client import BlockingClient, Client, Lease, Message, Producer, ReceivedMessage, codecs

class Order(msgspec.Struct):
    name: str

async def main(client: Client) -> None:
    orders = client.topic("Orders", Order)
    reveal_type(orders)  # Topic[Order]
    async for message in orders.consumer(group="billing"):
        reveal_type(message.value)  # Order
    async with orders.consumer(group="billing") as consumer:
        reveal_type((await consumer.poll())[0].value)  # Order

    async def handle(message: ReceivedMessage[Order]) -> None: ...
    async def other(message: ReceivedMessage[int]) -> None: ...

    await orders.run(handle, group="billing")
    await orders.run(other, group="billing")  # error: incompatible type
    await orders.run(lambda message: reveal_type(message.value), group="billing")  # Order
    await orders.send("no order")  # error: incompatible type
    await orders.send(Order("a"), keys=["a"], tagg="b")  # error: Unexpected keyword argument
    reveal_type(client.topic("Orders", codec=codecs.msgpack(Order)))  # Topic[Order]
    reveal_type(client.topic("Orders", dict[str, int]))  # Topic[dict[str, int]]
    reveal_type(client.producer("p"))  # Producer[bytes]
    reveal_type(client.producer("p", codec=codecs.json(Order)))  # Producer[Order]
    await client.producer("p").send("Orders", "text")  # error: incompatible type
    await client.producer("p", codec=codecs.json(Order)).send("Orders", Order("a"))
    reveal_type(client.lite_pull_consumer("g", codec=codecs.json(Order)))  # LitePullConsumer[Order]

def plain(producer: Producer, message: ReceivedMessage, lease: Lease) -> Message:
    reveal_type(message.value)  # Any
    return Message("T", message.body)

with BlockingClient() as client, client.topic("Orders", Order) as orders:
    reveal_type(orders)  # BlockingTopic[Order]
    for message in orders.consumer(group="billing"):
        reveal_type(message.value)  # Order
    orders.send(5)  # error: incompatible type
    client.producer("p", codec=codecs.json(Order)).send("Orders", Order("a"))
    client.producer("p").send("Orders", b"a")
    client.producer("p").send("Orders", "a")  # error: incompatible type
    client.producer("p").send_async("Orders", "a")  # error: incompatible type
    client.producer("p", codec=codecs.json(Order)).send_oneway("Orders", b"a")  # error: incompatible type
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says of each line of the program."""
    program = tmp_path_factory.mktemp("types") / "program.py"
    program.write_text(PROGRAM)
    words = ["--strict", "--no-error-summary", "--hide-error-context", "--config-file", "pyproject.toml"]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *words, str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[int, str] = {}
    for number, text in re.findall(r"program\.py:(\d+): (.*)", result.stdout):
        found[int(number)] = found.get(int(number), "") + text
    assert found, result.stdout + result.stderr
    return found


def test_mypy_knows_the_types(said: dict[int, str]) -> None:
    """Each line of the program has what its comment says, and the others have nothing."""
    expected = {
        number: line.partition("  # ")[2]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    }
    assert said.keys() == expected.keys()
    for number, comment in expected.items():
        plain = re.sub(r"\b(\w+\.)+(?=\w)", "", said[number])
        if comment.startswith("error: "):
            assert comment.removeprefix("error: ") in plain, plain
        else:
            assert f'note: Revealed type is "{comment}"' in plain, plain
