"""A small cluster of fakes: a name server and brokers that keep messages in lists. Implements the part of the
protocol that the client uses."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from rmqkit.client import Client
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import PULL_SUSPEND
from rmqkit.protocol import batch, record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    GetRouteInfoRequestHeader,
    LockBatchMqBody,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqkit.protocol.message_id import offset_message_id, pack_host
from rmqkit.protocol.tags import tags_code
from tests.client.fakes import FakeServer, Network

NAMESRV = "10.0.0.9:9876"
BORN = pack_host("10.1.1.1", 4000)
Override = Callable[[Command], "Command | Awaitable[Command | None] | None"]


class FakeBroker:
    """One master. `overrides` maps a request code to a function that answers instead; if it returns None,
    there is no answer."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.name = name
        self.address = address
        host, _, port = address.rpartition(":")
        self.host = pack_host(host, int(port))
        self.log: dict[tuple[str, int], list[bytes]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.min_offsets: dict[tuple[str, int], int] = {}
        self.overrides: dict[int, Override] = {}
        self.arrived = anyio.Event()
        self.server: FakeServer = network.add(address, self.handle)

    def handle(self, command: Command) -> Any:
        override = self.overrides.get(command.code)
        if override is not None:
            return override(command)
        handler = {
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MAX_OFFSET: self.queue_end,
            RequestCode.GET_MIN_OFFSET: self.queue_end,
        }.get(RequestCode(command.code))
        result = answer(command) if handler is None else handler(command)
        return None if command.is_oneway else result

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str] | None = None,
        sys_flag: int = 0,
    ) -> int:
        """Store one message; returns its queue offset."""
        queue = self.log.setdefault((topic, queue_id), [])
        text = props.encode(properties or {}).encode()
        message = PutMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties or {},
            properties_bytes=text,
            sys_flag=sys_flag,
            born_host=BORN,
        )
        offset = len(queue)
        queue.append(
            record.pack(
                message,
                record.message_size(message),
                offset,
                1000 * offset,
                1_700_000_000_000 + offset,
                self.host,
            )
        )
        self.arrived.set()
        self.arrived = anyio.Event()
        return offset

    def send(self, command: Command) -> Command:
        header = command.header(SendMessageRequestHeaderV2)
        if header.batch:
            items = [
                (item.body, props.decode(item.properties.decode())) for item in batch.decode(command.body)
            ]
        else:
            items = [(command.body, props.decode(header.properties or ""))]
        offsets = [
            self.put(header.topic, header.queue_id, body, properties, header.sys_flag)
            for body, properties in items
        ]
        ids = ",".join(offset_message_id(self.host, 1000 * offset) for offset in offsets)
        return answer(
            command,
            header=SendMessageResponseHeader(msg_id=ids, queue_id=header.queue_id, queue_offset=offsets[0]),
        )

    async def pull(self, command: Command) -> Command:
        header = command.header(PullMessageRequestHeader)
        queue = self.log.get((header.topic, header.queue_id), [])
        low = self.min_offsets.get((header.topic, header.queue_id), 0)
        while header.queue_offset == len(queue) and header.sys_flag & PULL_SUSPEND:
            with anyio.move_on_after(header.suspend_timeout_millis / 1000) as scope:
                await self.arrived.wait()
            queue = self.log.get((header.topic, header.queue_id), [])
            if scope.cancelled_caught:
                break
        if not low <= header.queue_offset <= len(queue):
            return self.pulled(
                command,
                ResponseCode.PULL_OFFSET_MOVED,
                min(max(low, header.queue_offset), len(queue)),
                low,
                len(queue),
            )
        found = queue[header.queue_offset : header.queue_offset + header.max_msg_nums]
        if not found:
            return self.pulled(command, ResponseCode.PULL_NOT_FOUND, header.queue_offset, low, len(queue))
        codes = (
            {tags_code(tag.strip()) for tag in (header.subscription or "*").split("||")}
            if header.subscription != "*"
            else None
        )
        body = b"".join(
            each
            for each in found
            if codes is None or tags_code(record.unpack(each).properties.get(props.TAGS)) in codes
        )
        code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
        return self.pulled(command, code, header.queue_offset + len(found), low, len(queue), body)

    def pulled(
        self, command: Command, code: int, following: int, low: int, high: int, body: bytes = b""
    ) -> Command:
        header = PullMessageResponseHeader(next_begin_offset=following, min_offset=low, max_offset=high)
        return answer(command, code, header=header, body=body)

    def query_offset(self, command: Command) -> Command:
        header = command.header(QueryConsumerOffsetRequestHeader)
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None:
            return answer(command, ResponseCode.QUERY_NOT_FOUND, "Not found")
        return answer(command, header=OffsetResponseHeader(offset=offset))

    def update_offset(self, command: Command) -> Command:
        header = command.header(UpdateConsumerOffsetRequestHeader)
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return answer(command)

    def queue_end(self, command: Command) -> Command:
        header = command.header(QueueRequestHeader)
        key = (header.topic, header.queue_id)
        low = self.min_offsets.get(key, 0)
        return answer(
            command,
            header=OffsetResponseHeader(
                offset=low if command.code == RequestCode.GET_MIN_OFFSET else len(self.log.get(key, []))
            ),
        )


class FakeCluster:
    """One name server, brokers `a`, `b`, ...; `topics` maps a topic to {broker name: queues}. Routes have
    bare integer keys, as Java writes them."""

    def __init__(self, network: Network, names: str) -> None:
        self.network = network
        self.brokers = {
            f"broker-{name}": FakeBroker(network, f"broker-{name}", f"10.0.0.{number}:10911")
            for number, name in enumerate(names, 1)
        }
        self.topics: dict[str, dict[str, int]] = {}
        self.perms: dict[str, int] = {}
        #: Brokers that have a slave only, at their address.
        self.without_master: set[str] = set()
        self.order: dict[str, str] = {}
        self.overrides: dict[int, Override] = {}
        self.namesrv = network.add(NAMESRV, self.handle)

    def handle(self, command: Command) -> Any:
        override = self.overrides.get(command.code)
        if override is not None:
            return override(command)
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = command.header(GetRouteInfoRequestHeader).topic
            if topic not in self.topics:
                return answer(
                    command,
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"No topic route info in name server for the topic: {topic}",
                )
            return answer(command, body=self.route(topic))
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = ",".join(f'"{name}":{self.broker_data(name)}' for name in self.brokers)
            return answer(
                command,
                body=f'{{"brokerAddrTable":{{{table}}},"clusterAddrTable":{{"c":{json.dumps(list(self.brokers))}}}}}'.encode(),
            )
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return answer(command, body=msgspec.json.encode({"topicList": list(self.topics)}))
        return answer(command)

    def broker_data(self, name: str) -> str:
        number = 1 if name in self.without_master else 0
        address = self.brokers[name].address
        return f'{{"brokerAddrs":{{{number}:"{address}"}},"brokerName":"{name}","cluster":"c"}}'

    def route(self, topic: str) -> bytes:
        queues = self.topics[topic]
        brokers = ",".join(self.broker_data(name) for name in queues)
        datas = ",".join(
            f'{{"brokerName":"{name}","perm":{self.perms.get(name, 6)},"readQueueNums":{count},'
            f'"topicSysFlag":0,"writeQueueNums":{count}}}'
            for name, count in queues.items()
        )
        order = f'"orderTopicConf":"{self.order[topic]}",' if topic in self.order else ""
        return (
            f'{{"brokerDatas":[{brokers}],"filterServerTable":{{}},{order}"queueDatas":[{datas}]}}'.encode()
        )


def serve_group(fake: FakeCluster, client: Client) -> FakeBroker:
    """Let the broker know the client as the only member of its groups, and grant every lock."""
    broker = fake.brokers["broker-a"]

    def members(command: Command) -> Command:
        return answer(command, body=msgspec.json.encode({"consumerIdList": [client.client_id]}))

    def lock(command: Command) -> Command:
        wanted = command.decode_body(LockBatchMqBody).mq_set
        return answer(command, body=msgspec.json.encode({"lockOKMQSet": wanted}))

    broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members
    broker.overrides[RequestCode.LOCK_BATCH_MQ] = lock
    return broker


@asynccontextmanager
async def cluster(names: str = "a", topics: dict[str, dict[str, int]] | None = None, **options: Any) -> Any:
    """A cluster and an open client of it. The default topic T has two queues on every broker."""
    async with Network() as network:
        fake = FakeCluster(network, names)
        fake.topics = {"T": dict.fromkeys(fake.brokers, 2)} if topics is None else topics
        async with Client(NAMESRV, connect=network.connect, **options) as client:
            yield fake, client
