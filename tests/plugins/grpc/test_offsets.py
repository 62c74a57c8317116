"""Reading of queues by their offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.client import CODES, ENUMS, Client, M, connected, message, resource, sending

POLICIES = ENUMS["QueryOffsetPolicy"]


def queue(queue_id: int = 0, topic: str = "T", broker: str = "") -> Any:
    made = M["MessageQueue"](topic=resource(topic), id=queue_id)
    made.broker.name = broker
    return made


def pulling(offset: int = 0, poll_ms: int = 0, expression: str = "*", **fields: Any) -> Any:
    request = M["PullMessageRequest"](group=resource("G"), message_queue=queue(), offset=offset, **fields)
    request.filter_expression.type = ENUMS["FilterType"]["TAG"]
    request.filter_expression.expression = expression
    request.long_polling_timeout.seconds = poll_ms // 1_000
    request.long_polling_timeout.nanos = poll_ms % 1_000 * 1_000_000
    return request


async def pulled(client: Client, request: Any, **metadata: Any) -> tuple[int, list[bytes], int | None]:
    """Code, bodies and the next offset of a pull."""
    reply = await client.until_ended(await client.begin("PullMessage", request, **metadata))
    assert reply.status == 0
    answers = [M["PullMessageResponse"].FromString(data) for data in reply.data]
    assert answers[0].WhichOneof("content") == "status"
    bodies = [each.message.body for each in answers if each.WhichOneof("content") == "message"]
    last = answers[-1]
    following = last.next_offset if last.WhichOneof("content") == "next_offset" else None
    return answers[0].status.code, bodies, following


async def _filled(client: Client, count: int = 3, **system: Any) -> None:
    for number in range(count):
        sent = await client.call("SendMessage", sending(message("T", f"{number}".encode(), **system)))
        assert sent.status.code == CODES["OK"]


async def test_messages_from_an_offset_on(tmp_path: Path) -> None:
    """They come in order, with the offset to continue with; the group's offset does not move."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        await _filled(client)
        assert await pulled(client, pulling()) == (CODES["OK"], [b"0", b"1", b"2"], 3)
        assert await pulled(client, pulling(1, batch_size=1)) == (CODES["OK"], [b"1"], 2)
        assert await pulled(client, pulling(3)) == (CODES["MESSAGE_NOT_FOUND"], [], 3)
        assert await pulled(client, pulling(99)) == (CODES["ILLEGAL_OFFSET"], [], 3)
        assert running.context.offsets.get("G", "T", 0) is None


async def test_filters(tmp_path: Path) -> None:
    """Tags are compared as texts, whatever their hashes are."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        for tag in ("Aa", "BB", "x"):
            sent = message("T", tag.encode(), tag=tag)
            await client.call("SendMessage", sending(sent))
        assert await pulled(client, pulling(expression="Aa||x")) == (CODES["OK"], [b"Aa", b"x"], 3)
        code, _, following = await pulled(client, pulling(expression="||"))
        assert (code, following) == (CODES["ILLEGAL_FILTER_EXPRESSION"], None)


async def test_a_pull_waits_for_messages(tmp_path: Path) -> None:
    """As long as it says; one that its client gives up is forgotten by the broker."""
    async with running_broker(tmp_path) as running, connected(running) as client, connected(running) as other:
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        stream = await client.begin("PullMessage", pulling(poll_ms=20_000), grpc_timeout="30S")
        with trio.fail_after(30):
            while not running.context.held.count:
                await trio.lowlevel.checkpoint()
        await _filled(other, 1)
        reply = await client.until_ended(stream)
        assert M["PullMessageResponse"].FromString(reply.data[1]).message.body == b"0"
        stream = await client.begin("PullMessage", pulling(1, poll_ms=20_000))
        with trio.fail_after(30):
            while not running.context.held.count:
                await trio.lowlevel.checkpoint()
            client.h2.reset_stream(stream, 8)
            await client.flush()
            while running.context.held.count:
                await trio.lowlevel.checkpoint()
        assert (await pulled(client, pulling()))[1] == [b"0"]


async def test_a_deadline_shortens_the_wait(tmp_path: Path) -> None:
    """The answer comes before the client gives up."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource("T")))
        code, bodies, _ = await pulled(client, pulling(poll_ms=20_000), grpc_timeout="600m")
        assert (code, bodies) == (CODES["MESSAGE_NOT_FOUND"], [])


async def test_the_offset_of_a_group(tmp_path: Path) -> None:
    """It is that which remoting consumers of the group have."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource("T")))
        asked = M["GetOffsetRequest"](group=resource("G"), message_queue=queue())
        assert (await client.call("GetOffset", asked)).status.code == CODES["OFFSET_NOT_FOUND"]
        update = M["UpdateOffsetRequest"](group=resource("G"), message_queue=queue(), offset=7)
        assert (await client.call("UpdateOffset", update)).status.code == CODES["OK"]
        assert running.context.offsets.get("G", "T", 0) == 7
        found = await client.call("GetOffset", asked)
        assert (found.status.code, found.offset) == (CODES["OK"], 7)
        update.offset = -1
        assert (await client.call("UpdateOffset", update)).status.code == CODES["ILLEGAL_OFFSET"]


async def test_offsets_of_a_queue(tmp_path: Path) -> None:
    """The first, the next, and that of a time."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        await _filled(client, 4)

        async def found(policy: str, seconds: int = 0) -> int:
            asked = M["QueryOffsetRequest"](message_queue=queue(), query_offset_policy=POLICIES[policy])
            if seconds:
                asked.timestamp.seconds = seconds
            answer = await client.call("QueryOffset", asked)
            assert answer.status.code == CODES["OK"]
            offset: int = answer.offset
            return offset

        assert [await found("BEGINNING"), await found("END")] == [0, 4]
        assert await found("TIMESTAMP", 1) == 0
        assert await found("TIMESTAMP", 1 << 33) == 4


async def test_queues_of_another_broker(tmp_path: Path) -> None:
    """They are not answered for; the text says which broker to ask."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        asked = M["QueryOffsetRequest"](message_queue=queue(broker="other"))
        answer = await client.call("QueryOffset", asked)
        assert answer.status.code == CODES["BAD_REQUEST"]
        assert "other" in answer.status.message
        own = M["QueryOffsetRequest"](message_queue=queue(broker=running.context.config.broker_name))
        assert (await client.call("QueryOffset", own)).status.code != CODES["BAD_REQUEST"]
