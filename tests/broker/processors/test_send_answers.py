"""The answers to stored sends: the handle of a message that can be recalled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import whole
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqkit.protocol.recall_handle import RecallHandle, decode_handle
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]
_SLOT_MS = 1_700_000_005_000
_ASKS = "ASKS"


class Park(EachPutHook):
    """Lets messages with a property wait, as timers do."""

    wants = frozenset({_ASKS})

    def before_each(self, message: PutMessage) -> None:
        place = {props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)}
        message.set_properties(message.properties | place | {props.TIMER_OUT_MS: str(_SLOT_MS)})
        message.topic, message.queue_id = names.TIMER_TOPIC, 0


class Parking:
    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("park", Park())


def handles(opened: Opened) -> AbstractAsyncContextManager[BrokerHarness]:
    return opened(extra=[("parking", Parking())])


def send(number: int, properties: str = "", **fields: Any) -> Command:
    text = f"UNIQ_KEY\x01K{number}\x02{properties}"
    header = SendMessageRequestHeaderV2(
        producer_group="p", **(dict[str, Any](topic="T", queue_id=0) | fields), properties=text
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, b"body", opaque=number)


def answers(desk: BrokerHarness, *sent: Command, codec: int = 0) -> list[SendMessageResponseHeader]:
    """The headers of the answers to sends that arrive together."""
    for each in sent:
        each.codec = codec
    requests = FrameDecoder().feed(b"".join(map(encode, sent)))
    processor = desk.router.processors[sent[0].code]
    found = [whole(each) for each in processor.process(requests, desk.peer) if each is not None]
    assert [each.code for each in found] == [0] * len(sent)
    return [each.header(SendMessageResponseHeader) for each in found]


@pytest.mark.only_store("memory", why="answers at once")
@pytest.mark.parametrize("codec", [0, 1])
async def test_a_message_that_waits_has_a_handle(opened: Opened, codec: int) -> None:
    """Topic, broker, time and id of the message are in it, whatever else comes together with it; other
    messages have none."""
    async with handles(opened) as desk:
        await desk.send()
        found = answers(desk, send(1), send(2, f"{_ASKS}\x01x\x02"), send(3), codec=codec)
        assert [each.recall_handle is None for each in found] == [True, False, True]
        assert decode_handle(found[1].recall_handle or "") == RecallHandle(
            "T", "broker-a", _SLOT_MS + 1, "K2"
        )
        assert found[1].transaction_id == "K2"


@pytest.mark.only_store("memory", why="answers at once")
async def test_the_answer_is_the_same_in_both_serialisations(opened: Opened) -> None:
    """Ids, real queue and offset, also for an id with characters that JSON escapes."""
    async with handles(opened) as desk:
        found = []
        for codec in (0, 1):
            (header,) = answers(
                desk, send(1, f'UNIQ_KEY\x01a"\\é\x02{_ASKS}\x01x\x02', queue_id=3), codec=codec
            )
            assert header.recall_handle is not None
            found.append(replace(header, msg_id="", queue_offset=header.queue_offset - codec))
        assert found[0] == found[1]
        assert (found[0].queue_id, found[0].transaction_id) == (3, 'a"\\é')


@pytest.mark.only_store("memory", why="answers at once")
async def test_what_has_no_handle(opened: Opened) -> None:
    """Batches and retries have none, as in Java, nor does a message whose id has a space."""
    async with handles(opened) as desk:
        await desk.subscribe()
        assert (await desk.send("%RETRY%g")).code == 0
        asks = f"{_ASKS}\x01x\x02"
        (retry,) = answers(desk, send(1, asks, topic="%RETRY%g"))
        assert retry.recall_handle is None
        items = batch.encode([BatchItem(0, b"x", f"UNIQ_KEY\x01K\x02{asks}".encode())])
        header = SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=0, batch=True)
        (several,) = answers(desk, request(RequestCode.SEND_BATCH_MESSAGE, header, items))
        assert several.recall_handle is None
        (spaced,) = answers(desk, send(2, f"UNIQ_KEY\x01a b\x02{asks}"))
        assert spaced.recall_handle is None


@pytest.mark.only_store("memory", why="answers at once")
async def test_an_id_that_the_broker_has_made(opened: Opened) -> None:
    """It is in the handle of a message that came without one."""
    async with handles(opened) as desk:
        sent = await desk.sent(properties={_ASKS: "x"})
        handle = decode_handle(sent.recall_handle or "")
        assert handle.message_id == sent.transaction_id
        assert handle.message_id
