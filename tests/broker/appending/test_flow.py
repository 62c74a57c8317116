"""The way of a send and of a pull through the modules, as docs/flow.md lists it, and its length."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from rmqkit import speedups
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer, running_broker

ROOT = Path(__file__).parents[3]
MMAP = "stores/rmqkit_store_mmap/"
#: A module and a function of it.
Hop = tuple[str, str]
SHARED_HOPS = 3
#: The first function that runs when a request has arrived, and the one that sends its answer.
ARRIVAL = ("rmqkit/remoting/reading.py", "_readable")
DEPARTURE = ("rmqkit/toolkit/sockets.py", "send_now")
#: Requests until a queue, its files and everything that is remembered between requests exist.
WARM_UPS = 5
#: Requests that are compared: what only some of them do, such as a change of interval, does not count.
MEASURED = 5
ROW = re.compile(r"^\| (send|pull) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def listed(block: str) -> tuple[list[Hop], list[Hop]]:
    """The hops in and out of a list."""
    ways: tuple[list[Hop], list[Hop]] = ([], [])
    for line in block.splitlines()[1:]:
        for way, part in enumerate((line[:48], line[48:])):
            if part.strip():
                *module, function = part.split()
                path = MMAP + module[1] if module[0] == "mmap" else f"rmqkit/{module[0]}"
                ways[way].append((path, function))
    return ways


def lists() -> tuple[tuple[list[Hop], list[Hop]], tuple[list[Hop], list[Hop]]]:
    """Hops in and out of a send, and of a pull."""
    text = (ROOT / "docs/flow.md").read_text()
    send, pull = (listed(block) for block in re.findall(r"```text\n(in  .*?)```", text, re.DOTALL))
    return send, (send[0][:SHARED_HOPS] + pull[0], pull[1])


@contextmanager
def calls(into: list[Hop]) -> Iterator[None]:
    """Note the functions of this repository that are called or continued."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and "site-packages" not in path.parts:
            into.append((str(path.relative_to(ROOT)), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def is_followed(way: list[Hop], made: list[Hop]) -> Hop | None:
    """The first hop that does not come after those before it; None when all do."""
    rest = iter(made)
    return next((hop for hop in way if hop not in rest), None)


def stated() -> dict[str, int]:
    """The number of functions that a send and a pull pass, as docs/flow.md says for this build."""
    rows = ROW.findall((ROOT / "docs/flow.md").read_text())
    return {kind: int(compiled if speedups.IN_USE else python) for kind, compiled, python in rows}


def passed(*requests: list[Hop]) -> set[Hop]:
    """The functions between arrival and answer of each of the requests. Comprehensions and lambdas belong to
    the functions that contain them."""
    ways: list[set[Hop]] = []
    for made in requests:
        arrival = made.index(ARRIVAL)
        way = made[arrival : made.index(DEPARTURE, arrival) + 1]
        ways.append({hop for hop in way if not hop[1].startswith("<")})
    return set.intersection(*ways)


async def made_by_a_send_and_a_pull(folder: Path) -> tuple[list[list[Hop]], list[list[Hop]]]:
    """The functions that each of some sends to a queue and of some pulls from it calls, after others of the
    same kind."""
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic="T", queue_id=0, properties="UNIQ_KEY\x01K\x02"
    )
    wanted = PullMessageRequestHeader(
        consumer_group="g",
        topic="T",
        queue_id=0,
        queue_offset=0,
        sys_flag=4,
        subscription="*",
        max_msg_nums=1,
    )
    async with running_broker(folder, store="mmap") as running, ConnectionPool(connect=dialer()) as pool:
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        await running.context.groups.put(SubscriptionGroupConfig(group_name="g"))

        async def made_by(command: Command) -> list[list[Hop]]:
            made: list[list[Hop]] = [[] for _ in range(WARM_UPS + MEASURED)]
            for each in made:
                with calls(each):
                    answer = await pool.call(str(running.address), command, 10_000)
                assert answer.code == 0
            return made[WARM_UPS:]

        return (
            await made_by(request(RequestCode.SEND_MESSAGE_V2, header, b"body")),
            await made_by(request(RequestCode.PULL_MESSAGE, wanted)),
        )


@pytest.mark.only_store("mmap", why="is about the way through one store")
@pytest.mark.only_transport("tcp", why="is about the way to a socket")
async def test_a_send_and_a_pull_take_the_listed_ways(tmp_path: Path) -> None:
    """They pass the listed functions in their order; a send passes at most nine in and five out, and no
    module twice."""
    (send_in, send_out), (pull_in, pull_out) = lists()
    assert len(send_in) <= 9
    assert len(send_out) <= 5
    for way in (send_in, send_out, pull_in, pull_out):
        assert len({module for module, _ in way}) == len(way)
    send, pull = await made_by_a_send_and_a_pull(tmp_path)
    for each in send:
        assert is_followed(send_in + send_out, each) is None
    for each in pull:
        assert is_followed(pull_in + pull_out, each) is None


@pytest.mark.only_store("mmap", why="is about the way through one store")
@pytest.mark.only_transport("tcp", why="is about the way to a socket")
async def test_a_send_and_a_pull_pass_as_many_functions_as_stated(tmp_path: Path) -> None:
    """A layer that is added fails here with the names of all functions; after one is removed, docs/flow.md is
    lowered."""
    send, pull = (passed(*made) for made in await made_by_a_send_and_a_pull(tmp_path))
    ways = (("send", send), ("pull", pull))
    names = "\n".join(f"{kind}: {hop}" for kind, way in ways for hop in sorted(way))
    assert {"send": len(send), "pull": len(pull)} == stated(), names


def test_a_layer_on_the_way_is_counted() -> None:
    """A function between arrival and answer counts once; what runs before and afterwards does not count."""
    layer = ("rmqkit/broker/layer.py", "pass_on")
    lambda_hop = ("rmqkit/broker/layer.py", "<lambda>")
    bare = [layer, ARRIVAL, DEPARTURE, layer]
    assert passed(bare) == {ARRIVAL, DEPARTURE}
    layered = [ARRIVAL, layer, lambda_hop, layer, DEPARTURE]
    assert passed(layered, layered) == {ARRIVAL, layer, DEPARTURE}
    assert passed(layered, bare) == {ARRIVAL, DEPARTURE}
