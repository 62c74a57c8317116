"""Requests of brokers to consumers, and the answers of a lite pull consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from rmqkit.client import ClientError, LitePullConsumer, MessageQueue, ReceivedMessage
from rmqkit.client.server_requests import ServerRequests
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from tests.client.fake_cluster import FakeBroker, cluster, serve_group
from tests.client.fakes import run, settled

QUEUE = MessageQueue("T", "broker-a", 0)
Ask = Callable[..., Awaitable[Command | None]]


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[FakeBroker, LitePullConsumer, Ask]]:
    """A consumer of one queue of five messages, with the first one delivered, and a function that sends
    requests as the broker."""
    async with (
        cluster("a", {"T": {"broker-a": 1}}) as (fake, client),
        client.lite_pull_consumer("cg", subscribe={"T": "A"}, start="first") as consumer,
    ):
        broker = serve_group(fake, client)
        for number in range(5):
            broker.put("T", 0, b"%d" % number, {"TAGS": "A"})
        assert (await anext(consumer)).body == b"0"

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
        yield broker, consumer, ask


def body_of(command: Command | None) -> Any:
    assert command is not None
    assert command.code == 0
    # RocketMQ 5.5 refuses a queue as a quoted key.
    assert b'{"{' not in command.body
    return loose_json.loads(command.body)


@pytest.mark.row("S319")
def test_running_info_shows_subscriptions_and_queues() -> None:
    """The body has the keys that mqadmin reads; of five unfinished messages one is being processed."""

    async def body() -> None:
        async with reading() as (_broker, _consumer, ask):
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
            ) == (5, 0, 4, 0)
            assert state["droped"] is False

    run("trio", body)


@pytest.mark.row("S319")
def test_offsets_in_memory() -> None:
    """GET_CONSUMER_STATUS_FROM_CLIENT returns the next offset of each queue of the topic."""

    async def body() -> None:
        async with reading() as (_broker, consumer, ask):
            await anext(consumer)
            status = body_of(
                await ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "cg", "topic": "T"})
            )
            assert {
                loose_json.decode(key, MessageQueue): at for key, at in status["messageQueueTable"].items()
            } == {QUEUE: 1}

    run("trio", body)


@pytest.mark.row("S319")
@pytest.mark.parametrize("as_list", [False, True])
def test_offsets_are_reset(as_list: bool) -> None:
    """Messages read ahead are dropped, reading continues at the new offset, which is committed; the current
    message does not change it."""

    async def body() -> None:
        async with reading() as (broker, consumer, ask):
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
            assert consumer.offsets("T") == {QUEUE: 3}
            assert [(await anext(consumer)).body for _ in range(2)] == [b"3", b"4"]
            await consumer.commit()
            assert broker.offsets["cg", "T", 0] == 5
            await consumer.seek(QUEUE, 1)
            await consumer.commit()
            assert broker.offsets["cg", "T", 0] == 1
            assert (await anext(consumer)).body == b"1"
            with pytest.raises(ClientError, match="0 to 5 are there"):
                await consumer.seek(QUEUE, -1)

    run("trio", body)


def test_a_reset_ends_a_held_pull() -> None:
    """The new offset is read at once although the broker holds a pull at the end of the queue."""

    async def body() -> None:
        async with reading() as (_broker, consumer, _ask):
            for _ in range(4):
                await anext(consumer)
            async with anyio.create_task_group() as group:
                group.start_soon(consumer.commit)
            began_s = anyio.current_time()
            await consumer.seek(QUEUE, 2)
            assert (await anext(consumer)).body == b"2"
            assert anyio.current_time() == began_s

    run("trio", body)


@pytest.mark.row("S319")
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
        async with reading() as (_broker, _consumer, ask):
            found = await ask(code, fields)
            assert found is not None
            assert found.code == 1
            assert why in (found.remark or "")

    run("trio", body)


def test_unreadable_offsets_change_nothing() -> None:
    """The consumer continues at its position."""

    async def body() -> None:
        async with reading() as (_broker, consumer, ask):
            for text in (
                b"no json",
                b'{"offsetTable":{"x":1}}',
                b'{"offsetTable":[5]}',
                b'{"offsetTable":{}}',
            ):
                await ask(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "cg", "topic": "T"}, text, oneway=True
                )
            assert [(await anext(consumer)).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]

    run("trio", body)


@pytest.mark.parametrize("oneway", [True, False])
def test_the_outcome_of_a_transaction_is_unknown(oneway: bool) -> None:
    """A one-way question for the outcome of a half message stays unanswered; one that wants an answer is
    told that there are no transactions. The consumer goes on."""

    async def body() -> None:
        async with reading() as (_, consumer, ask):
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
            assert (await anext(consumer)).body == b"1"

    run("trio", body)


NO_TRANSACTIONS = (3, "this producer has no transactions")
CHECK_FIELDS = {"transactionId": "T1", "msgId": "M1", "commitLogOffset": "7", "tranStateTableOffset": "3"}


def outcome(said: Command | None) -> tuple[int, str | None] | None:
    return None if said is None else (said.code, said.remark)


@pytest.mark.row("S319")
@pytest.mark.parametrize("oneway", [True, False])
def test_a_question_for_a_transaction_reaches_its_producer_group(oneway: bool) -> None:
    """The half message names the group. Its handler gets the question, the message and the broker; a group
    without one, and one that is not here, answer that there are no transactions."""

    async def body() -> None:
        async with reading() as (broker, consumer, ask):
            instance = consumer._instance
            asked: list[tuple[str, bytes, str]] = []

            async def check(command: Command, half: ReceivedMessage, address: str) -> Command | None:
                asked.append((command.fields()["tranStateTableOffset"], half.body, address))
                return None if command.is_oneway else answer(command, remark="commit")

            instance.join_producer("paying", check)
            instance.join_producer("plain")

            async def question(group: str) -> Command | None:
                broker.put("Half", 0, b"half", {"PGROUP": group})
                stored = broker.log["Half", 0][-1]
                return await ask(RequestCode.CHECK_TRANSACTION_STATE, CHECK_FIELDS, stored, oneway=oneway)

            said = await question("paying")
            assert asked == [("3", b"half", broker.address)]
            assert outcome(said) == (None if oneway else (0, "commit"))
            for group in ("plain", "elsewhere"):
                broker.server.requests.clear()
                said = await question(group)
                assert (
                    said is None
                    if oneway
                    else said is not None and (said.code, said.remark) == NO_TRANSACTIONS
                )
            assert len(asked) == 1
            broker.server.requests.clear()
            said = await ask(RequestCode.CHECK_TRANSACTION_STATE, CHECK_FIELDS, b"half", oneway=oneway)
            assert said is None if oneway else said is not None and said.code == 1
            await instance.leave(producer="paying")
            broker.server.requests.clear()
            assert outcome(await question("paying")) == (None if oneway else NO_TRANSACTIONS)
            assert len(asked) == 1

    run("trio", body)


def test_a_code_has_one_handler() -> None:
    """Handlers for further codes can be added and removed; what nobody handles is refused."""

    async def body() -> None:
        async with reading() as (broker, consumer, ask):
            requests = consumer._instance.requests
            requests.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, lambda command, address: answer(command))
            with pytest.raises(ClientError, match="have a handler"):
                requests.add(RequestCode.CHECK_TRANSACTION_STATE, lambda command, address: None)
            said = await ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {})
            assert said is not None
            assert said.code == 0
            requests.remove(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
            broker.server.requests.clear()
            said = await ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {})
            assert said is not None
            assert "is not served by this client" in (said.remark or "")

    run("trio", body)


def test_a_group_joins_once() -> None:
    """A second producer or consumer of a group is refused; what it would replace stays."""
    requests = ServerRequests()
    requests.join_producer("g")
    with pytest.raises(ClientError, match="already has a producer of group 'g'"):
        requests.join_producer("g")
    assert requests.producers == {"g": None}
