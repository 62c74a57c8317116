"""Request-reply: the reply is pushed to the requester."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.model import properties as props
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    PushReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness

TOPIC = "DefaultCluster_REPLY_TOPIC"


async def reply(
    desk: BrokerHarness,
    to: str | None = "requester",
    *,
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2,
    **fields: Any,
) -> Command:
    kind = SendMessageRequestHeader if code == RequestCode.SEND_REPLY_MESSAGE else SendMessageRequestHeaderV2
    properties = {"CORRELATION_ID": "42", "MSG_TYPE": "reply"} | ({"REPLY_TO_CLIENT": to} if to else {})
    fields = (
        dict[str, Any](producer_group="p", topic=TOPIC, queue_id=0, properties=props.encode(properties))
        | fields
    )
    header = kind(**fields)
    return await desk.ask(code, header, b"pong", peer=FakePeer("10.5.5.5", 55))


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_pushed_to_the_requester(desk: BrokerHarness, code: int) -> None:
    """The requester is found by the client id of its heartbeat; body, properties and hosts are complete; the
    responder is answered when the requester has the reply."""
    pushed: list[Command] = []

    def requester(command: Command) -> Command:
        pushed.append(command)
        return answer(command)

    await desk.heartbeat(producers=["p"], client_id="requester", peer=FakePeer(on_call=requester))
    got = await reply(desk, code=code, born_timestamp=9, flag=2)
    assert got.code == 0
    header = got.header(SendMessageResponseHeader)
    assert (header.msg_id, header.queue_id, header.queue_offset) == ("0", 0, 0)
    (command,) = pushed
    sent = command.header(PushReplyMessageRequestHeader)
    assert (command.code, command.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"pong")
    assert (sent.born_host, sent.store_host, sent.topic, sent.born_timestamp, sent.flag) == (
        "10.5.5.5:55",
        "127.0.0.1:10911",
        TOPIC,
        9,
        2,
    )
    assert sent.store_timestamp == desk.clock.now_ms()
    properties = props.decode(sent.properties or "")
    assert (properties["CORRELATION_ID"], properties["PUSH_REPLY_TIME"]) == ("42", str(desk.clock.now_ms()))
    assert desk.is_empty()


async def test_a_requester_that_is_gone(desk: BrokerHarness) -> None:
    """A requester that never registered or has disconnected is answered with SYSTEM_ERROR."""
    assert (await reply(desk)).code == ResponseCode.SYSTEM_ERROR
    peer = FakePeer()
    await desk.heartbeat(producers=["p"], client_id="requester", peer=peer)
    peer.close()
    got = await reply(desk)
    assert got.code == ResponseCode.SYSTEM_ERROR
    assert (got.remark or "").startswith("push reply message fail")


async def test_a_requester_that_refuses(desk: BrokerHarness) -> None:
    """The requester's remark is returned to the responder."""
    peer = FakePeer(on_call=lambda command: answer(command, 1, "too late"))
    await desk.heartbeat(producers=["p"], client_id="requester", peer=peer)
    got = await reply(desk)
    assert got.code == ResponseCode.SYSTEM_ERROR
    assert "too late" in (got.remark or "")


async def test_a_reply_to_nobody(desk: BrokerHarness) -> None:
    """Without REPLY_TO_CLIENT the reply has no destination."""
    got = await reply(desk, None)
    assert got.code == ResponseCode.SYSTEM_ERROR
    assert "REPLY_TO_CLIENT" in (got.remark or "")


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"topic": "../x"}, 29), ({"queue_id": 5}, 29), ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16)],
)
async def test_a_reply_is_checked_like_a_send(desk: BrokerHarness, fields: dict[str, Any], code: int) -> None:
    """Topic name, queue id and forbidden topics are checked."""
    assert (await reply(desk, **fields)).code == code
