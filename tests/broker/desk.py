"""A broker without sockets: its parts over a memory store, a clock moved by the test, and a fake peer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from attrs import define, field

from rmqkit.broker.roles.role_refusals import follow_role
from rmqkit.broker.run import assemble
from rmqkit.broker.run.context import BrokerContext
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.model.subscription import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin import loader
from rmqkit.protocol import loose_json, record
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.request_loop import Router
from rmqkit.testing.broker import test_config
from rmqkit.testing.choice import chosen
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.peer import FakePeer, ask
from tests.broker.wire import Wire, carried

PORT = 10_911


@define(slots=False)
class BrokerHarness:
    """Sends requests to a broker's processors as a client would."""

    broker: BrokerContext
    clock: FakeClock
    router: Router
    fast_router: Router
    peer: FakePeer = field(factory=FakePeer)
    wire: Wire | None = None

    async def outcome(self, command: Command, peer: FakePeer | None = None) -> Command | None:
        """The answer, None when there is none now. What is postponed until something is written is waited
        for; what the request has caused at other connections is done."""
        peer = peer or self.peer
        if self.wire is not None:
            answer = await self.wire.outcome(command, peer)
        else:
            answer = await ask(self.router.processors.get(command.code, self.router.default), command, peer)
        saving = self.broker.topics.pending or self.broker.groups.pending
        if answer is None and peer.owed and (saving or not self.broker.store.written_by_append):
            await peer.all_answered()
            answer = peer.answers.pop()
        self.broker.work.finish()
        return answer

    def expire_pulls(self, now_ms: int) -> None:
        """Answer the held pulls whose deadline has passed."""
        self.broker.held.expire(now_ms)
        self.broker.work.finish()

    async def ask(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        peer: FakePeer | None = None,
        version: int = 475,
    ) -> Command:
        """The answer to a request that is answered at once."""
        answer = await self.outcome(request(code, header, body, opaque=7, version=version), peer)
        assert answer is not None
        assert answer.is_response
        assert answer.opaque == 7
        return answer

    async def send(
        self,
        topic: str = "T",
        body: bytes = b"body",
        queue_id: int = 0,
        *,
        code: int = RequestCode.SEND_MESSAGE,
        version: int = 475,
        peer: FakePeer | None = None,
        properties: dict[str, str] | str | None = None,
        **fields: Any,
    ) -> Command:
        """The answer to a send."""
        text = props.encode(properties) if isinstance(properties, dict) else properties
        header = SendMessageRequestHeader(
            producer_group="p", topic=topic, queue_id=queue_id, properties=text, **fields
        )
        return await self.ask(code, header, body, version=version, peer=peer)

    async def sent(self, *args: Any, **kwargs: Any) -> SendMessageResponseHeader:
        """The header of a successful send."""
        answer = await self.send(*args, **kwargs)
        assert (answer.code, answer.remark) == (0, None)
        return answer.header(SendMessageResponseHeader)

    def stored(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        """The stored messages of a queue."""
        store = self.broker.store
        with store.blocking_reads():
            units = store.read_units(topic, queue_id, store.min_offset(topic, queue_id), 1_000)
            found = [store.read_record(unit.physical_offset) for unit in units]
        return [record.unpack(one) for one in found if one is not None]

    def is_empty(self) -> bool:
        """Whether nothing was stored."""
        return self.broker.store.statistics().max_physical_offset == 0

    async def heartbeat(
        self,
        *groups: ConsumerData,
        client_id: str = "c1",
        producers: Iterable[str] = (),
        peer: FakePeer | None = None,
    ) -> Command:
        beat = HeartbeatData(
            client_id=client_id,
            consumer_data_set=list(groups),
            producer_data_set=[ProducerData(group_name=name) for name in producers],
        )
        return await self.ask(RequestCode.HEART_BEAT, body=loose_json.dumps(beat), peer=peer)

    async def subscribe(
        self, group: str = "g", *subscriptions: SubscriptionData, topic: str = "T", **fields: Any
    ) -> None:
        """A heartbeat of one consumer group."""
        wanted = list(subscriptions) or [SubscriptionData(topic=topic)]
        answer = await self.heartbeat(ConsumerData(group_name=group, subscription_data_set=wanted, **fields))
        assert answer.code == 0

    def pull_request(self, topic: str = "T", queue_id: int = 0, offset: int = 0, **fields: Any) -> Command:
        """A pull that contains its subscription, unless `sys_flag` is given."""
        code = fields.pop("code", RequestCode.PULL_MESSAGE)
        fields = dict[str, Any](consumer_group="g", sys_flag=4, subscription="*") | fields
        return request(
            code,
            PullMessageRequestHeader(topic=topic, queue_id=queue_id, queue_offset=offset, **fields),
            opaque=7,
        )

    async def pull(self, topic: str = "T", queue_id: int = 0, offset: int = 0, **fields: Any) -> Command:
        answer = await self.outcome(self.pull_request(topic, queue_id, offset, **fields))
        assert answer is not None
        return answer

    async def send_back(
        self, offset: int, *, group: str = "g", delay_level: int = 0, version: int = 475, **fields: Any
    ) -> Command:
        header = ConsumerSendMsgBackRequestHeader(
            offset=offset, group=group, delay_level=delay_level, **fields
        )
        return await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header, version=version)


def bodies(answer: Command) -> list[bytes]:
    """The bodies of the messages in an answer."""
    return [message.body for message in record.unpack_all(answer.body)]


def places(answer: Command) -> tuple[int, int, int]:
    """Next, minimum and maximum offset of a pull answer."""
    header = answer.header(PullMessageResponseHeader)
    assert header.suggest_which_broker_id == 0
    return header.next_begin_offset, header.min_offset, header.max_offset


@asynccontextmanager
async def at_work(broker: BrokerContext) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.appender.acks.run)
        await nursery.start(broker.role.run)
        await nursery.start(broker.topics.run)
        await nursery.start(broker.groups.run)
        if not broker.store.written_by_append:
            # The store's background task must run to write.
            await nursery.start(broker.store.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_desk(
    directory: Path, *, extra: Iterable[tuple[str, object]] = (), ip: str = "127.0.0.1", **keys: Any
) -> AsyncIterator[BrokerHarness]:
    """A broker with the topic T of four queues and, where its first use would create it, the group g. Its
    settings are the tests' defaults and `keys` of broker.conf."""
    config = test_config(directory, **({"listenPort": PORT, "brokerIP1": ip} | keys))
    registry = loader.load(config, extra=extra)
    clock = FakeClock()
    store, policy = assemble.make_store(config, registry, clock)
    broker = assemble.make_context(config, registry, clock, store, policy, ConnectionPool(), ip, PORT)
    await store.open()
    assemble.load_tables(broker)
    await broker.dispatching.open()
    assemble.announce(broker)
    desk = BrokerHarness(broker, clock, *assemble.make_routers(broker))
    follow_role(broker.role, desk.router)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(at_work(broker))
        await broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        if config.auto_create_subscription_group:
            await broker.groups.put(SubscriptionGroupConfig(group_name="g"))
        if chosen().carried:
            desk.wire = await stack.enter_async_context(carried(desk.router))
        yield desk
    await broker.dispatching.close()
    await store.close()
