"""A broker without sockets whose leases a test lets end by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing
from attrs import define

from rmqkit.model.message import StoredMessage
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol import loose_json, record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmqkit.protocol.receipt import BatchAck, BatchAckMessageRequestBody, Receipt, parse_receipt, receipts
from rmqkit.testing.listening import until
from rmqkit.testing.peer import FakePeer
from rmqkit_pop.service import PopService
from tests.broker.desk import BrokerHarness, open_desk

GROUP, TOPIC = "g", "T"
LEASE_MS = 60_000


@define
class Popped:
    """A message as a client gets it, with its handle and the topic that its acknowledgement names."""

    message: StoredMessage
    handle: Receipt
    topic: str
    #: Deliveries before, as an ordered answer says.
    tried: int | None = None

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def offset(self) -> int:
        return self.message.queue_offset


@define
class PopDesk:
    """Pops and acknowledges as a client would."""

    desk: BrokerHarness

    @property
    def service(self) -> PopService:
        service = self.desk.broker.registry.services["pop"]
        assert isinstance(service, PopService)
        return service

    @property
    def leased(self) -> int:
        """The number of leased messages."""
        assert self.service.engine is not None
        return self.service.engine.leases.count

    async def ask(self, command: Command, peer: FakePeer | None = None) -> Command:
        """The answer to a request that is not held."""
        peer = peer or FakePeer()
        answer = await self.desk.outcome(command, peer)
        if answer is None:
            await peer.all_answered()
            (answer,) = peer.answers
        return answer

    def pop_request(self, topic: str = TOPIC, queue_id: int = -1, **fields: Any) -> Command:
        given: dict[str, Any] = {
            "consumer_group": GROUP,
            "max_msg_nums": 32,
            "invisible_time": LEASE_MS,
            "poll_time": 0,
        } | fields
        header = PopMessageRequestHeader(topic=topic, queue_id=queue_id, **given)
        return request(RequestCode.POP_MESSAGE, header, opaque=7)

    async def pop(self, *args: Any, **fields: Any) -> list[Popped]:
        """The messages that a pop gets now."""
        return popped(await self.ask(self.pop_request(*args, **fields)), fields)

    async def ack(self, message: Popped, **fields: Any) -> Command:
        given: dict[str, Any] = {
            "consumer_group": GROUP,
            "topic": message.topic,
            "queue_id": message.message.queue_id,
            "extra_info": message.handle.text,
            "offset": message.offset,
        } | fields
        return await self.ask(request(RequestCode.ACK_MESSAGE, AckMessageRequestHeader(**given), opaque=7))

    async def acked(self, *messages: Popped) -> None:
        for message in messages:
            answer = await self.ack(message)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def change(self, message: Popped, invisible_ms: int, **fields: Any) -> Command:
        given: dict[str, Any] = {
            "consumer_group": GROUP,
            "topic": message.topic,
            "queue_id": message.message.queue_id,
            "extra_info": message.handle.text,
            "offset": message.offset,
            "invisible_time": invisible_ms,
        } | fields
        header = ChangeInvisibleTimeRequestHeader(**given)
        return await self.ask(request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, opaque=7))

    async def changed(self, message: Popped, invisible_ms: int, **fields: Any) -> Popped:
        """The message with its new handle."""
        answer = await self.change(message, invisible_ms, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        times = answer.header(ChangeInvisibleTimeResponseHeader)
        handle = message.handle._replace(
            start_offset=message.offset,
            pop_time_ms=times.pop_time,
            invisible_ms=times.invisible_time,
            revive_queue=times.revive_qid,
        )
        return Popped(message.message, handle, message.topic)

    async def batch_ack(self, *acks: BatchAck, broker_name: str | None = None) -> Command:
        body = BatchAckMessageRequestBody(broker_name=broker_name, acks=list(acks))
        return await self.ask(Command(RequestCode.BATCH_ACK_MESSAGE, opaque=7, body=loose_json.dumps(body)))

    async def pass_time(self, ms: int) -> None:
        """Let time pass, and leases end."""
        self.desk.clock.advance(ms)
        await self.settle()

    async def settle(self) -> None:
        """Let the service do what is due, also what waits for a topic that has to be made."""
        engine = self.service.engine
        assert engine is not None
        for _ in range(2):
            engine.sooner.set()
            await trio.testing.wait_all_tasks_blocked()
            await until(lambda: not self.desk.broker.topics.pending)
        await trio.testing.wait_all_tasks_blocked()
        self.desk.broker.work.finish()


def popped(answer: Command, asked: dict[str, Any] | None = None) -> list[Popped]:
    """The messages of an answer to a pop."""
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    header = answer.header(PopMessageResponseHeader)
    own = receipts(header, "broker-a")
    tried = dict(entry.split(" ")[1:] for entry in (header.order_count_info or "").split(";") if entry)
    found = []
    for message in record.unpack_all(answer.body):
        handle_text = message.properties.get("POP_CK")
        place = (message.queue_id, message.queue_offset)
        handle = parse_receipt(handle_text) if handle_text else own[place]
        topic = handle.topic(message.topic, (asked or {}).get("consumer_group", GROUP))
        count = tried.get(f"qo{message.queue_id}%{message.queue_offset}")
        found.append(Popped(message, handle, topic, None if count is None else int(count)))
    return found


def bodies(messages: Sequence[Popped]) -> list[bytes]:
    return [each.body for each in messages]


@asynccontextmanager
async def open_pop_desk(directory: Path, **keys: Any) -> AsyncIterator[PopDesk]:
    """A broker whose pop service runs."""
    async with open_desk(directory, brokerName="broker-a", **keys) as desk:
        pops = PopDesk(desk)
        async with trio.open_nursery() as nursery:
            await nursery.start(pops.service.run, desk.broker)
            yield pops
            nursery.cancel_scope.cancel()


async def put_group(pops: PopDesk, **fields: Any) -> None:
    await pops.desk.broker.groups.put(SubscriptionGroupConfig(group_name=GROUP, **fields))
