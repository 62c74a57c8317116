"""Receives with a lease, and what follows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.names import dlq_topic
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.testing.broker import running_broker
from rmqkit.testing.clock import LoopClock
from rmqkit_grpc.limits import RENEWED_INVISIBLE_MS
from tests.plugins.grpc.client import (
    CODES,
    ENUMS,
    Client,
    M,
    connected,
    consuming,
    message,
    resource,
    sending,
)
from tests.plugins.grpc.test_producing import stored

GROUP, TOPIC = "G", "T"


def receiving(
    invisible_ms: int = 60_000, poll_ms: int = 0, expression: str = "*", sql: bool = False, **fields: Any
) -> Any:
    request = M["ReceiveMessageRequest"](group=resource(GROUP), batch_size=32, **fields)
    request.message_queue.topic.name = TOPIC
    request.filter_expression.type = ENUMS["FilterType"]["SQL" if sql else "TAG"]
    request.filter_expression.expression = expression
    request.long_polling_timeout.seconds = poll_ms // 1_000
    request.long_polling_timeout.nanos = poll_ms % 1_000 * 1_000_000
    if not request.auto_renew:
        request.invisible_duration.seconds = invisible_ms // 1_000
        request.invisible_duration.nanos = invisible_ms % 1_000 * 1_000_000
    return request


async def received(client: Client, request: Any, **metadata: Any) -> tuple[int, list[Any]]:
    """The code and the messages of a receive, whose last answer is the time of delivery."""
    return _answers(await client.until_ended(await client.begin("ReceiveMessage", request, **metadata)))


def _answers(reply: Any) -> tuple[int, list[Any]]:
    assert reply.status == 0, reply.text
    answers = [M["ReceiveMessageResponse"].FromString(data) for data in reply.data]
    kinds = [each.WhichOneof("content") for each in answers]
    assert (kinds[0], kinds[-1]) == ("status", "delivery_timestamp")
    return answers[0].status.code, [each.message for each in answers[1:-1]]


async def some(client: Client, request: Any) -> list[Any]:
    """The messages of a receive that must have some."""
    with trio.fail_after(60):
        while True:
            code, messages = await received(client, request)
            if messages:
                assert code == CODES["OK"]
                return messages
            assert code == CODES["MESSAGE_NOT_FOUND"]
            await trio.lowlevel.checkpoint()


async def begun(running: RunningBroker, client: Client, queues: int = 1, **group: Any) -> None:
    """A topic, and a group that begins at its end."""
    await running.context.topics.put(
        TopicConfig(topic_name=TOPIC, read_queue_nums=queues, write_queue_nums=queues)
    )
    if group:
        await running.context.groups.put(SubscriptionGroupConfig(group_name=GROUP, **group))
    await client.settle(consuming(GROUP, TOPIC))
    assert await received(client, receiving()) == (CODES["MESSAGE_NOT_FOUND"], [])


async def send(client: Client, *bodies: str, **system: Any) -> None:
    for body in bodies:
        answer = await client.call("SendMessage", sending(message(TOPIC, body.encode(), **system)))
        assert answer.status.code == CODES["OK"]


def handle(one: Any) -> str:
    found: str = one.system_properties.receipt_handle
    return found


def acking(*handles: str) -> Any:
    request = M["AckMessageRequest"](group=resource(GROUP), topic=resource(TOPIC))
    for number, each in enumerate(handles):
        request.entries.add(message_id=f"{number}", receipt_handle=each)
    return request


def changing(text: str, duration_ms: int, **fields: Any) -> Any:
    request = M["ChangeInvisibleDurationRequest"](
        group=resource(GROUP), topic=resource(TOPIC), receipt_handle=text, **fields
    )
    request.invisible_duration.seconds = duration_ms // 1_000
    request.invisible_duration.nanos = duration_ms % 1_000 * 1_000_000
    return request


async def test_messages_are_received_and_acknowledged(tmp_path: Path) -> None:
    """Each once, from all queues; an acknowledged one does not come again."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client, queues=4)
        await send(client, *"abcdef", tag="x", keys=["k"])
        found: list[Any] = []
        while len(found) < 6:
            found += await some(client, receiving())
        assert sorted(each.body for each in found) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert {(each.system_properties.tag, each.system_properties.delivery_attempt) for each in found} == {
            ("x", 1)
        }
        assert await received(client, receiving()) == (CODES["MESSAGE_NOT_FOUND"], [])
        answer = await client.call("AckMessage", acking(*map(handle, found)))
        assert answer.status.code == CODES["OK"]
        assert [each.status.code for each in answer.entries] == [CODES["OK"]] * 6


async def test_another_client_may_acknowledge(tmp_path: Path) -> None:
    """The handle alone says which message is meant."""
    async with (
        running_broker(tmp_path) as running,
        connected(running) as client,
        connected(running, "other") as other,
    ):
        await begun(running, client)
        await send(client, "a")
        (one,) = await some(client, receiving())
        assert (await other.call("AckMessage", acking(handle(one)))).status.code == CODES["OK"]
        again = await other.call("AckMessage", acking(handle(one)))
        assert again.status.code == CODES["INVALID_RECEIPT_HANDLE"]


async def test_handles_that_are_none(tmp_path: Path) -> None:
    """Each entry has its status; when they differ, the whole says so."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client)
        await send(client, "a")
        (one,) = await some(client, receiving())
        parts = handle(one).split(" ")
        wrong = ["", "x", " ".join(parts[:7]), " ".join([*parts[:5], "other", *parts[6:]])]
        answer = await client.call("AckMessage", acking(handle(one), *wrong))
        assert answer.status.code == CODES["MULTIPLE_RESULTS"]
        codes = [each.status.code for each in answer.entries]
        assert codes == [CODES["OK"], *[CODES["INVALID_RECEIPT_HANDLE"]] * 4]
        assert (await client.call("AckMessage", acking())).status.code == CODES["BAD_REQUEST"]
        for text in wrong:
            changed = await client.call("ChangeInvisibleDuration", changing(text, 1_000))
            assert changed.status.code == CODES["INVALID_RECEIPT_HANDLE"]


async def test_a_receive_waits_for_a_message(tmp_path: Path) -> None:
    """It is answered when one comes; one that its client gives up takes none."""
    async with running_broker(tmp_path) as running, connected(running) as client, connected(running) as other:
        await begun(running, client)
        given_up = await client.begin("ReceiveMessage", receiving(poll_ms=20_000))
        stream = await client.begin("ReceiveMessage", receiving(poll_ms=20_000), grpc_timeout="23S")
        with trio.fail_after(60):
            while running.context.held.count < 2:
                await trio.lowlevel.checkpoint()
            client.h2.reset_stream(given_up, 8)
            await client.flush()
            while running.context.held.count > 1:
                await trio.lowlevel.checkpoint()
        await send(other, "a")
        code, messages = _answers(await client.until_ended(stream))
        assert (code, [each.body for each in messages]) == (CODES["OK"], [b"a"])


async def test_filters(tmp_path: Path) -> None:
    """Tags are compared as texts, and SQL as the broker has it."""
    async with running_broker(tmp_path, enablePropertyFilter=True) as running, connected(running) as client:
        await begun(running, client)
        for tag in ("Aa", "BB"):
            await send(client, tag, tag=tag)
        (one,) = await some(client, receiving(expression="Aa"))
        assert one.body == b"Aa"
        coloured = message(TOPIC, b"green")
        coloured.user_properties["colour"] = "green"
        await client.call("SendMessage", sending(coloured))
        (one,) = await some(client, receiving(expression="colour = 'green'", sql=True))
        assert one.body == b"green"
        code, _ = await received(client, receiving(expression="colour =", sql=True))
        assert code == CODES["ILLEGAL_FILTER_EXPRESSION"]


async def test_a_message_that_is_not_finished_comes_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """After its lease, or at once when the client says so; it counts its deliveries."""
    waiting = receiving(10_000, poll_ms=20_000)
    async with (
        running_broker(tmp_path, clock=LoopClock(), scheme="memory") as running,
        connected(running, scheme="memory") as client,
    ):
        await begun(running, client)
        await send(client, "a")
        (one,) = await some(client, waiting)
        begun_at = trio.current_time()
        (again,) = await some(client, waiting)
        assert trio.current_time() - begun_at >= 10
        assert (again.body, again.system_properties.delivery_attempt) == (b"a", 2)
        assert again.system_properties.message_id == one.system_properties.message_id
        changed = await client.call("ChangeInvisibleDuration", changing(handle(again), 3_600_000))
        assert changed.status.code == CODES["OK"]
        for _ in range(3):
            assert await received(client, waiting) == (CODES["MESSAGE_NOT_FOUND"], [])
        sooner = await client.call("ChangeInvisibleDuration", changing(changed.receipt_handle, 0))
        assert sooner.status.code == CODES["OK"]
        (third,) = await some(client, waiting)
        assert third.system_properties.delivery_attempt == 3
        assert (await client.call("AckMessage", acking(handle(third)))).status.code == CODES["OK"]


async def test_messages_with_a_time_of_delivery(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """They come at that time, and say it; those whose time has passed come at once."""
    waiting = receiving(poll_ms=20_000)
    async with (
        running_broker(tmp_path, clock=LoopClock(), scheme="memory") as running,
        connected(running, scheme="memory") as client,
    ):
        await begun(running, client)
        now_ms = running.context.clock.now_ms()
        for body, at_ms in (("late", now_ms + 10_000), ("past", now_ms - 10_000)):
            timed = ENUMS["MessageType"]["DELAY"]
            await send(client, body, delivery_timestamp_ms=at_ms, message_type=timed)
        (past,) = await some(client, waiting)
        assert past.body == b"past"
        (late,) = await some(client, waiting)
        assert late.body == b"late"
        assert running.context.clock.now_ms() >= now_ms + 10_000
        system = late.system_properties
        assert system.message_type == ENUMS["MessageType"]["DELAY"]
        assert system.delivery_timestamp.seconds == (now_ms + 10_000) // 1_000


async def test_leases_that_the_server_renews(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A message stays with its client while that lives, under its first handle; at the client's end others
    get it at once, and its deliveries are not counted."""
    waiting = receiving(poll_ms=20_000)
    async with (
        running_broker(tmp_path, clock=LoopClock(), scheme="memory") as running,
        connected(running, scheme="memory") as client,
        connected(running, "other", scheme="memory") as other,
    ):
        await begun(running, client)
        await send(client, "a", "b")
        first = await some(client, receiving(auto_renew=True))
        assert [each.body for each in first] == [b"a", b"b"]
        for _ in range(3 * RENEWED_INVISIBLE_MS // 20_000):
            await client.call("Heartbeat", M["HeartbeatRequest"]())
            assert await received(other, waiting) == (CODES["MESSAGE_NOT_FOUND"], [])
        assert (await client.call("AckMessage", acking(handle(first[0])))).status.code == CODES["OK"]
        done = await client.call("NotifyClientTermination", M["NotifyClientTerminationRequest"]())
        assert done.status.code == CODES["OK"]
        (left,) = await some(other, waiting)
        assert (left.body, left.system_properties.delivery_attempt) == (b"b", 1)


async def test_dead_letters(tmp_path: Path) -> None:
    """A message that is forwarded is in the group's dead letters, and finished."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client)
        await send(client, "a")
        (one,) = await some(client, receiving())
        request = M["ForwardMessageToDeadLetterQueueRequest"](
            group=resource(GROUP), topic=resource(TOPIC), receipt_handle=handle(one), message_id="1"
        )
        answer = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == CODES["OK"], answer
        assert [each.body for each in stored(running, dlq_topic(GROUP))] == [b"a"]
        again = await client.call("AckMessage", acking(handle(one)))
        assert again.status.code == CODES["INVALID_RECEIPT_HANDLE"]
        request.receipt_handle = " ".join(handle(one).split(" ")[:8])
        answer = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == CODES["INVALID_RECEIPT_HANDLE"]


async def test_a_message_that_was_tried_too_often(tmp_path: Path) -> None:
    """It goes to the dead letters instead of its client, as brokers leave that to whoever receives from
    them."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client, retry_max_times=1)
        await send(client, "spent", delivery_attempt=3)
        await send(client, "good", delivery_attempt=2)
        code, messages = await received(client, receiving(poll_ms=1_000))
        assert (code, [each.body for each in messages]) == (CODES["OK"], [b"good"])
        assert [each.body for each in stored(running, dlq_topic(GROUP))] == [b"spent"]


async def test_messages_of_a_group_in_order(tmp_path: Path) -> None:
    """A group that consumes in order gets nothing behind a message that is not finished."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client, consume_message_orderly=True)
        await send(client, "a", "b", message_group="g", message_type=ENUMS["MessageType"]["FIFO"])
        request = receiving()
        request.batch_size = 1
        (one,) = await some(client, request)
        assert one.body == b"a"
        assert await received(client, request) == (CODES["MESSAGE_NOT_FOUND"], [])
        assert (await client.call("AckMessage", acking(handle(one)))).status.code == CODES["OK"]
        (two,) = await some(client, request)
        assert two.body == b"b"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (receiving(9_999), "ILLEGAL_INVISIBLE_TIME"),
        (receiving(12 * 3_600_000 + 1), "ILLEGAL_INVISIBLE_TIME"),
        (receiving(expression="||"), "ILLEGAL_FILTER_EXPRESSION"),
    ],
)
async def test_receives_that_are_refused(tmp_path: Path, request_: Any, code: str) -> None:
    """The status says why, and the last answer comes all the same."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client)
        assert await received(client, request_) == (CODES[code], [])


async def test_a_topic_that_does_not_exist(tmp_path: Path) -> None:
    """A receive creates no topic."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        assert await received(client, receiving()) == (CODES["TOPIC_NOT_FOUND"], [])
        assert running.context.topics.get(TOPIC) is None


async def test_assignments(tmp_path: Path) -> None:
    """All queues at once; of an ordered group each queue; none of a topic that cannot be read."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client, queues=3, consume_message_orderly=False)
        asked = M["QueryAssignmentRequest"](topic=resource(TOPIC), group=resource(GROUP))
        asked.endpoints.addresses.add(host="tunnel", port=5)
        answer = await client.call("QueryAssignment", asked)
        assert answer.status.code == CODES["OK"]
        (one,) = answer.assignments
        assert one.message_queue.id == -1
        assert one.message_queue.permission == ENUMS["Permission"]["READ_WRITE"]
        assert one.message_queue.broker.endpoints.addresses[0].host == "tunnel"
        await running.context.groups.put(
            SubscriptionGroupConfig(group_name=GROUP, consume_message_orderly=True)
        )
        ordered = await client.call("QueryAssignment", asked)
        assert [each.message_queue.id for each in ordered.assignments] == [0, 1, 2]
        await running.context.topics.put(TopicConfig(topic_name=TOPIC, perm=2))
        assert (await client.call("QueryAssignment", asked)).status.code == CODES["FORBIDDEN"]
