"""What administrators ask a member of a group: its running info, and to consume one message directly."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import (
    BrokerError,
    DeadLetter,
    LitePullOptions,
    MessageQueue,
    Prefetch,
    PushOptions,
    ReceivedMessage,
    Retry,
)
from rmqkit.client.thread_dump import thread_dump
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from tests.client.consumer.groups import Group, group_of, until

QUEUE = MessageQueue("T", "broker-a", 0)


async def ask(group: Group, code: RequestCode, **fields: str) -> Any:
    """Let the broker ask the client, as mqadmin does."""
    command = request(code)
    command.ext = {"consumerGroup": "g", "clientId": group.client.client_id, **fields}
    address = f"127.0.0.1:{group.cluster.broker.context.config.listen_port}"
    instance = group.client._opened()
    response = await instance.call(address, command, "asking a member")
    return loose_json.loads(response.body)


class Doing:
    """A handler that does what the body says."""

    def __init__(self) -> None:
        self.seen: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append(message)
        await trio.sleep(0.25)
        match message.body:
            case b"bad":
                raise ValueError("a defect")
            case b"later":
                raise Retry(after=5)
            case b"dead":
                raise DeadLetter("no use")


@pytest.mark.parametrize(
    ("body", "outcome", "remark"),
    [
        (b"good", "CR_SUCCESS", None),
        (b"bad", "CR_THROW_EXCEPTION", "ValueError: a defect"),
        (b"later", "CR_LATER", "Retry: retry after 5 s"),
        (b"dead", "CR_LATER", "DeadLetter: no use"),
    ],
)
@pytest.mark.parametrize("order", ["none", "queue"])
async def test_a_message_is_consumed_directly(
    tmp_path: Path, autojump_clock: MockClock, body: bytes, outcome: str, remark: str | None, order: Any
) -> None:
    """The handler is called once more with the message, and the answer says what came of it, in Java's form.
    The queue does not change, and nothing is sent back."""
    doing = Doing()
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", order=order, start="last") as consumer,
    ):
        nursery.start_soon(consumer.run, doing)
        await until(lambda: QUEUE in consumer.queues)
        sent = await group.producer.send("T", b"first")
        await until(lambda: group.committed("g", QUEUE) == 1)
        consumer._engine.assigned[QUEUE].pause()
        await group.client.admin.create_topic("Other", queues=1)
        sent = await group.producer.send("Other", body)
        fields = {"msgId": sent.offset_message_id, "brokerName": "broker-a"}
        result = await ask(group, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
        assert 250 <= result.pop("spentTimeMills") < 5000
        assert result == {
            "order": order == "queue",
            "autoCommit": True,
            "consumeResult": outcome,
            "remark": remark,
        }
        assert [(each.topic, each.body) for each in doing.seen] == [("T", b"first"), ("Other", body)]
        assert doing.seen[1].message_id == sent.message_id
        assert group.cluster.broker.context.store.max_offset("%RETRY%g", 0) == 0
        consumer.stop()


async def test_nobody_can_consume_directly_without_a_handler(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A consumer that is used as a loop, and a lite pull consumer, answer with an error."""
    async with group_of(tmp_path, queues=1) as group:
        sent = await group.producer.send("T", b"x")
        fields = {"msgId": sent.offset_message_id, "brokerName": "broker-a"}
        for make in (group.client.push_consumer, group.client.lite_pull_consumer):
            async with make("g", subscribe="T"):
                with pytest.raises(BrokerError, match="handler"):
                    await ask(group, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)


@pytest.mark.row("S172")
async def test_the_running_info(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The broker passes on what the member says about itself: settings by Java's names, queues with times of
    the wall clock, and what was pulled and consumed of each topic in the last minute."""
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer(
            "g", subscribe="T", concurrency=3, prefetch=Prefetch(messages=77), max_attempts=4
        ) as consumer,
    ):
        nursery.start_soon(consumer.run, Doing())
        await until(lambda: QUEUE in consumer.queues)
        for number in range(60):
            await group.producer.send("T", b"bad" if number % 20 == 10 else b"good")
        await until(lambda: group.committed("g", QUEUE) == 60)
        info = await ask(group, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        now_ms = group.client._opened().now_ms()
        consumer.stop()
    wanted = {
        "consumerGroup": "g",
        "PROP_THREADPOOL_CORE_SIZE": "3",
        "pullThresholdForQueue": "77",
        "maxReconsumeTimes": "3",
        "messageModel": "CLUSTERING",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
    }
    assert wanted.items() <= info["properties"].items()
    (state,) = [
        state for key, state in info["mqTable"].items() if loose_json.decode(key, MessageQueue) == QUEUE
    ]
    assert state["commitOffset"] == 60
    for name in ("lastPullTimestamp", "lastConsumeTimestamp"):
        assert now_ms - 120_000 < state[name] <= now_ms
    status = info["statusTable"]["T"]
    assert status["consumeRT"] == pytest.approx(250, rel=0.2)
    assert status["consumeFailedMsgs"] == 3
    assert status["consumeOKTPS"] / status["consumeFailedTPS"] == pytest.approx(19, rel=0.01)
    assert status["pullTPS"] > 0
    assert status["pullRT"] > 0
    assert '"MainThread"' in info["jstack"]


def test_the_settings_of_lite_pull_consumers() -> None:
    """They are shown by Java's names as well."""
    shown = LitePullOptions(auto_commit=False, broadcast=True, pull_messages=5).described()
    assert (shown["autoCommit"], shown["messageModel"], shown["pullBatchSize"]) == (
        "false",
        "BROADCASTING",
        "5",
    )
    assert PushOptions(order="key").described()["PROP_CONSUMEORDERLY"] == "true"


def test_the_thread_dump_names_all_threads() -> None:
    """Also those that wait."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="a sleeper")
    thread.start()
    try:
        dump = thread_dump()
    finally:
        ended.set()
        thread.join()
    assert '"a sleeper"' in dump
    assert "test_the_thread_dump_names_all_threads" in dump
