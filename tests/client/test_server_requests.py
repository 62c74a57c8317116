"""Requests of brokers to consumers, and the answers of a pull consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from rmqkit.client import ClientError, MessageQueue, MessageStream
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import encode
from tests.client.cluster import FakeBroker, cluster
from tests.client.fakes import run, settled

QUEUE = MessageQueue("T", "broker-a", 0)
Ask = Callable[..., Awaitable[Command | None]]


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[FakeBroker, MessageStream, Ask]]:
    """A stream over one queue of five messages, with the first one delivered, and a function that sends
    requests as the broker."""
    async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client), client.pull_consumer("cg") as consumer:
        broker = fake.brokers["broker-a"]
        for number in range(5):
            broker.put("T", 0, b"%d" % number, {"TAGS": "A"})
        stream = consumer.messages("T", expression="A")
        assert (await anext(stream)).body == b"0"

        async def ask(
            code: RequestCode, fields: dict[str, str], body: bytes = b"", *, oneway: bool = False
        ) -> Command | None:
            command = request(code, body=body, opaque=77, oneway=oneway)
            command.ext = fields
            for link in broker.server.streams[-1:]:
                await link.send(encode(command))
            await settled()
            await anyio.wait_all_tasks_blocked()
            return next(
                (each for each in broker.server.requests if each.is_response and each.opaque == 77), None
            )

        # Answers of the client arrive at the fake server as requests.
        for code in (0, 1, 3):
            broker.overrides[code] = lambda command: None
        yield broker, stream, ask


def body_of(command: Command | None) -> Any:
    assert command is not None
    assert command.code == 0
    # RocketMQ 5.5 refuses a queue as a quoted key.
    assert b'{"{' not in command.body
    return loose_json.loads(command.body)


def test_running_info_shows_subscriptions_and_queues() -> None:
    """The body has the keys that mqadmin reads; one message is being processed, four are read ahead."""

    async def body() -> None:
        async with reading() as (_broker, _stream, ask):
            info = body_of(
                await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "cg", "clientId": "me"})
            )
            assert info["properties"]["PROP_CONSUMER_START_TIMESTAMP"].isdecimal()
            assert (info["properties"]["PROP_CONSUME_TYPE"], info["properties"]["PROP_CONSUMEORDERLY"]) == (
                "CONSUME_ACTIVELY",
                "false",
            )
            assert [(each["topic"], each["tagsSet"]) for each in info["subscriptionSet"]] == [("T", ["A"])]
            ((key, state),) = info["mqTable"].items()
            assert loose_json.decode(key, MessageQueue) == QUEUE
            assert (
                state["cachedMsgCount"],
                state["cachedMsgMinOffset"],
                state["cachedMsgMaxOffset"],
                state["commitOffset"],
            ) == (4, 1, 4, 0)
            assert state["droped"] is False

    run("trio", body)


def test_offsets_in_memory() -> None:
    """GET_CONSUMER_STATUS_FROM_CLIENT returns the next offset of each queue of the topic."""

    async def body() -> None:
        async with reading() as (_broker, stream, ask):
            await anext(stream)
            status = body_of(
                await ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "cg", "topic": "T"})
            )
            assert {
                loose_json.decode(key, MessageQueue): at for key, at in status["messageQueueTable"].items()
            } == {QUEUE: 1}

    run("trio", body)


@pytest.mark.parametrize("as_list", [False, True])
def test_offsets_are_reset(as_list: bool) -> None:
    """Messages read ahead are dropped, reading continues at the new offset, which is committed; the current
    message does not change it."""

    async def body() -> None:
        async with reading() as (broker, stream, ask):
            table: Any = {"offsetTable": {QUEUE: 3}}
            text = loose_json.dumps(
                {"offsetTable": [{**msgspec.to_builtins(QUEUE), "offset": 3}]} if as_list else table,
                raw_keys=not as_list,
            )
            assert (
                await ask(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "cg", "topic": "T"}, text, oneway=True
                )
                is None
            )
            assert stream.positions() == {QUEUE: 3}
            assert [(await anext(stream)).body for _ in range(2)] == [b"3", b"4"]
            await stream.commit()
            assert broker.offsets["cg", "T", 0] == 5
            stream.seek(QUEUE, 1)
            await stream.commit()
            assert broker.offsets["cg", "T", 0] == 1
            assert (await anext(stream)).body == b"1"
            with pytest.raises(ClientError, match="begin at 0"):
                stream.seek(QUEUE, -1)

    run("trio", body)


def test_a_reset_ends_a_held_pull() -> None:
    """The new offset is read at once although the broker holds a pull at the end of the queue."""

    async def body() -> None:
        async with reading() as (_broker, stream, _ask):
            for _ in range(4):
                await anext(stream)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.commit)
            began_s = anyio.current_time()
            stream.seek(QUEUE, 2)
            assert (await anext(stream)).body == b"2"
            assert anyio.current_time() == began_s

    run("trio", body)


@pytest.mark.parametrize(
    ("code", "fields", "why"),
    [
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "cg"}, "one message is expected"),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "other"}, "no consumer of group 'other'"),
        (
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            {"group": "other", "topic": "T"},
            "no consumer of group 'other'",
        ),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {}, "no consumer of group ''"),
    ],
)
def test_what_cannot_be_done_is_answered(code: RequestCode, fields: dict[str, str], why: str) -> None:
    """Unsupported requests are answered with a code and a remark."""

    async def body() -> None:
        async with reading() as (_broker, _stream, ask):
            found = await ask(code, fields)
            assert found is not None
            assert found.code == 1
            assert why in (found.remark or "")

    run("trio", body)


def test_unreadable_offsets_change_nothing() -> None:
    """The stream continues at its position."""

    async def body() -> None:
        async with reading() as (_broker, stream, ask):
            for text in (
                b"no json",
                b'{"offsetTable":{"x":1}}',
                b'{"offsetTable":[5]}',
                b'{"offsetTable":{}}',
            ):
                await ask(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "cg", "topic": "T"}, text, oneway=True
                )
            assert [(await anext(stream)).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]

    run("trio", body)


@pytest.mark.parametrize("oneway", [True, False])
def test_the_outcome_of_a_transaction_is_unknown(oneway: bool) -> None:
    """A one-way question for the outcome of a half message stays unanswered; one that wants an answer is
    told that there are no transactions. The stream goes on."""

    async def body() -> None:
        async with reading() as (_, stream, ask):
            fields = {
                "transactionId": "T1",
                "msgId": "M1",
                "commitLogOffset": "0",
                "tranStateTableOffset": "0",
            }
            said = await ask(RequestCode.CHECK_TRANSACTION_STATE, fields, b"half", oneway=oneway)
            if oneway:
                assert said is None
            else:
                assert said is not None
                assert (said.code, said.remark) == (3, "this producer has no transactions")
            assert (await anext(stream)).body == b"1"

    run("trio", body)
