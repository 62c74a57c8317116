"""Administration over name servers and brokers (Java: DefaultMQAdminExt, MQAdminImpl; behaviour sheet, A15
and G1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import anyio
import msgspec
from attrs import frozen

from rmqkit.client.answers import refusal
from rmqkit.client.consumer.received import ReceivedMessage, received
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.client.routing.masters import ADMIN_TIMEOUT_MS, Masters
from rmqkit.client.routing.routes import Route
from rmqkit.errors import BrokerError, ClientError, DecodeError, RmqError
from rmqkit.model import properties as props
from rmqkit.model.message_type import MESSAGE_TYPE
from rmqkit.model.names import is_made_by_brokers, reply_topic, topic_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.model.replication import ReplicationStatus
from rmqkit.model.route import ClusterInfo, KVTable, TopicRouteData
from rmqkit.model.sysflag import PERM_RW
from rmqkit.model.topic import ConsumerOffsetFile, TopicConfig, TopicConfigTable
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rmqkit.protocol.message_id import parse_offset_message_id

log = logging.getLogger(__name__)

QUERY_TIMEOUT_MS = 18_000
#: How long `create_topic` waits until the name servers know the topic, and how often it asks them.
ROUTE_WAIT_MS = 3000
ROUTE_POLL_S = 0.02
FOREVER_MS = 0x7FFFFFFFFFFFFFFF


@frozen
class QueueStats:
    """Offsets of one queue, and the store time of its last message (ms since 1970, 0 when the queue is
    empty)."""

    min_offset: int
    max_offset: int
    last_update_timestamp_ms: int


class _QueueStatsBody(msgspec.Struct, rename="camel", kw_only=True):
    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class _TopicStatsBody(msgspec.Struct, rename="camel", kw_only=True):
    offset_table: dict[str, _QueueStatsBody] = {}


class Admin:
    """Administration, available as `client.admin`. Every method raises NameServersUnreachable, BrokerError,
    ConnectFailed, ConnectionLost and RequestTimeout."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._masters = Masters(instance)
        self._names = instance.names

    async def cluster_info(self) -> ClusterInfo:
        """All clusters with their brokers and the addresses of the brokers."""
        return await self._instance.name_servers.cluster_info()

    async def cluster_info_of(self, address: str) -> ClusterInfo:
        """The brokers and clusters that one name server knows."""
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        return (await self._call(address, command, f"asking {address} for the clusters")).decode_body(
            ClusterInfo
        )

    async def topics(self) -> list[str]:
        """All topics, sorted; system, retry and dead-letter topics included. With a namespace, those of the
        namespace."""
        return self._names.own(await self._instance.name_servers.topics())

    async def application_topics(self) -> list[str]:
        """The topics of applications, sorted. Topics that brokers create for themselves (named after a
        broker, a cluster or a group) are left out."""
        info = await self.cluster_info()
        clusters = info.cluster_addr_table
        own = {*clusters, *map(reply_topic, clusters), *info.broker_addr_table}
        return [topic for topic in await self.topics() if topic not in own and not is_made_by_brokers(topic)]

    @in_namespace
    async def route(self, topic: str) -> TopicRouteData | None:
        """The current route according to a name server; None when no broker has the topic."""
        return await self._instance.name_servers.route(topic)

    @in_namespace
    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        perm: int = PERM_RW,
        broker: str | None = None,
        cluster: str | None = None,
        order: bool = False,
        message_type: str | None = None,
        attributes: str | None = None,
        route_wait_ms: int = ROUTE_WAIT_MS,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> list[str]:
        """Create or change the topic on the selected masters: of one broker, of a cluster, or all. Returns
        the broker names.

        queues        number of queues for reading, and for writing unless `write_queues` is given
        perm          6 read and write, 4 read only, 2 write only
        message_type  NORMAL, FIFO, DELAY, TRANSACTION or MIXED: what the topic is for, kept in its attribute
                      `message.type`; None leaves it as it is
        attributes    further changes of attributes, `+key=value,-key`, for example `+reserve.time=60000`
        timeout_ms    time for each broker; a replica group that elects its master is asked again within it

        Brokers register the topic with the name servers after a short delay. The call waits up to
        `route_wait_ms` until the topic can be read, and logs a warning when that takes longer. It stops at
        the first broker that refuses: the brokers before it (sorted by name) have the topic. Raises
        ClientError for an illegal name or when no broker matches the selection.
        """
        fault = topic_fault(topic)
        if fault is not None:
            raise ClientError(fault)
        changes = [f"+{MESSAGE_TYPE}={message_type}"] if message_type else []
        header = CreateTopicRequestHeader(
            topic=topic,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
            order=order,
            attributes=",".join(changes + ([attributes] if attributes else [])) or None,
        )
        brokers = await self._masters.change(
            partial(request, RequestCode.UPDATE_AND_CREATE_TOPIC, header),
            f"creating topic {topic!r}",
            broker=broker,
            cluster=cluster,
            timeout_ms=timeout_ms,
        )
        await self._await_route(
            topic, dict.fromkeys(brokers, (header.read_queue_nums, header.write_queue_nums)), route_wait_ms
        )
        self._instance.routes.forget(topic)
        return brokers

    @in_namespace
    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete the topic on all masters of the cluster (default: of every cluster), then on every name
        server. Returns the broker names.

        The messages can no longer be read from this moment. A name server that cannot be reached is an error,
        because it would keep routing clients to the deleted topic.
        """
        command = partial(request, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))
        brokers = await self._masters.change(command, f"deleting topic {topic!r}", cluster=cluster)
        for address in await self._instance.name_servers.known():
            header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
            await self._call(
                address,
                request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header),
                f"deleting the route of {topic!r}",
            )
        self._instance.routes.forget(topic)
        return brokers

    async def masters(self, *, broker: str | None = None, cluster: str | None = None) -> dict[str, str]:
        """The selected masters: broker name -> address, sorted by name. Raises ClientError when there are
        none."""
        return await self._masters.addresses(broker, cluster)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """A broker's own run-time figures (GET_BROKER_RUNTIME_INFO). Keys and texts differ between versions.
        Raises DecodeError."""
        response = await self._call(
            address, request(RequestCode.GET_BROKER_RUNTIME_INFO), f"asking {address} for its state"
        )
        return response.decode_body(KVTable).table

    async def replication(self, address: str) -> ReplicationStatus:
        """The slaves of a master, or the master of a slave (GET_BROKER_HA_STATUS). Raises DecodeError."""
        response = await self._call(
            address, request(RequestCode.GET_BROKER_HA_STATUS), f"asking {address} for its replication"
        )
        return response.decode_body(ReplicationStatus)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """All topics of a broker with their settings (GET_ALL_TOPIC_CONFIG). Raises DecodeError."""
        command = request(RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = await self._call(address, command, f"asking {address} for its topics")
        return answer.decode_body(TopicConfigTable).topic_config_table

    async def consumer_offsets(self, address: str) -> dict[str, dict[int, int]]:
        """What groups have committed at a broker, by `topic@group` and queue (GET_ALL_CONSUMER_OFFSET).
        Raises DecodeError."""
        command = request(RequestCode.GET_ALL_CONSUMER_OFFSET)
        answer = await self._call(address, command, f"asking {address} for its offsets")
        return answer.decode_body(ConsumerOffsetFile).offset_table if answer.body else {}

    async def replication_address(self, address: str) -> str | None:
        """Where slaves connect to a master; None for a broker that serves none. A master of RocketMQ 4 does
        not say it: then it is what its settings name."""
        command = request(RequestCode.EXCHANGE_BROKER_HA_INFO)
        try:
            answer = await self._call(address, command, f"asking {address} where slaves connect")
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        else:
            return answer.fields().get("masterHaAddress")
        given = await self.broker_settings(address)
        if "haListenPort" not in given:
            return None
        host = given.get("brokerIP2") or address.rpartition(":")[0]
        return f"{host}:{given['haListenPort']}"

    async def broker_settings(self, address: str) -> dict[str, str]:
        """The settings of a broker as texts (GET_BROKER_CONFIG)."""
        command = request(RequestCode.GET_BROKER_CONFIG)
        return _pairs(await self._call(address, command, f"asking {address} for its settings"))

    async def name_server_settings(self) -> dict[str, dict[str, str]]:
        """Address of each name server -> its settings as texts (GET_NAMESRV_CONFIG)."""
        return {
            address: _pairs(
                await self._call(
                    address, request(RequestCode.GET_NAMESRV_CONFIG), f"asking {address} for its settings"
                )
            )
            for address in await self._instance.name_servers.known()
        }

    async def change_broker_settings(
        self, values: Mapping[str, str], *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, str | None]:
        """Change settings of the selected masters while they run, at each all or none (UPDATE_BROKER_CONFIG).
        Returns what each broker remarks: None when the change is in its configuration file, too. Stops at the
        first one that refuses, with BrokerError, and raises ClientError when there is no master."""
        chosen = await self._masters.addresses(broker, cluster)
        return {
            name: await self._change(RequestCode.UPDATE_BROKER_CONFIG, address, values)
            for name, address in chosen.items()
        }

    async def change_name_server_settings(self, values: Mapping[str, str]) -> dict[str, str | None]:
        """Change settings of all name servers while they run (UPDATE_NAMESRV_CONFIG), as
        `change_broker_settings`; by address."""
        return {
            address: await self._change(RequestCode.UPDATE_NAMESRV_CONFIG, address, values)
            for address in await self._instance.name_servers.known()
        }

    async def _change(self, code: RequestCode, address: str, values: Mapping[str, str]) -> str | None:
        body = "".join(f"{key}={value}\n" for key, value in values.items()).encode()
        answer = await self._call(address, request(code, body=body), f"changing settings of {address}")
        return answer.remark

    @in_namespace
    async def topic_config(self, topic: str, address: str) -> TopicConfig | None:
        """A topic's settings on a broker; None when the broker has no such topic or does not support
        GET_TOPIC_CONFIG. Raises DecodeError."""
        command = request(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic=topic))
        try:
            response = await self._call(address, command, f"asking for topic {topic!r}")
        except BrokerError as error:
            if error.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                return None
            raise
        return response.decode_body(TopicConfig)

    @in_namespace
    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """Offsets of all queues, sorted. Raises NoRoute, DecodeError."""
        stats: dict[MessageQueue, QueueStats] = {}
        for address in masters_of((await self._fresh_route(topic)).data).values():
            stats |= await self.topic_stats_of(address, topic)
        return dict(sorted(stats.items()))

    @in_namespace
    async def topic_stats_of(self, address: str, topic: str) -> dict[MessageQueue, QueueStats]:
        """Offsets of the queues on one broker. Raises DecodeError, and BrokerError with TOPIC_NOT_EXIST when
        the broker does not have the topic."""
        command = request(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic=topic))
        response = await self._call(address, command, f"asking for the offsets of {topic!r}")
        table = response.decode_body(_TopicStatsBody).offset_table
        return {
            queue_of(text): QueueStats(entry.min_offset, entry.max_offset, entry.last_update_timestamp)
            for text, entry in table.items()
        }

    @in_namespace
    async def query_by_key(
        self, topic: str, key: str, *, max_messages: int = 64, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> list[ReceivedMessage]:
        """Messages of the topic with this index key, stored within [begin, end], oldest first. All masters
        are queried concurrently.

        If some masters fail, the messages of the others are returned; if there are none, the failure is
        raised. Raises NoRoute.
        """
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_messages, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        return await self._query(topic, header, lambda message: key in message.keys)

    @in_namespace
    async def query_by_message_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Messages with the producer's id (UNIQ_KEY): one, or several if the send was retried. Raises as
        `query_by_key`."""
        header = QueryMessageRequestHeader(topic=topic, key=message_id, max_num=32, unique_key_query=True)
        return await self._query(
            topic, header, lambda message: message.properties.get(props.UNIQ_KEY) == message_id
        )

    @in_namespace
    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """The message with a broker's offset id. The request goes to the address that the id contains. Raises
        DecodeError for a malformed id."""
        host, port, offset = parse_offset_message_id(offset_message_id)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        command = request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
        response = await self._call(address, command, f"looking for message {offset_message_id}")
        found = await received(response.body, await self._broker_name(address))
        if not found.messages:
            raise ClientError(f"{address} has no message {offset_message_id}")
        return found.messages[0]

    # --- within ---------------------------------------------------------------------------------------------

    async def _query(
        self, topic: str, header: QueryMessageRequestHeader, matches: Callable[[ReceivedMessage], bool]
    ) -> list[ReceivedMessage]:
        masters = masters_of((await self._fresh_route(topic)).data)
        found: list[ReceivedMessage] = []
        failures: list[RmqError] = []

        async def ask(name: str, address: str) -> None:
            try:
                response = await self._instance.pool.call(
                    address, request(RequestCode.QUERY_MESSAGE, header), QUERY_TIMEOUT_MS
                )
                if response.code == ResponseCode.SUCCESS:
                    answered = await received(response.body, name)
                    if not answered.complete:
                        fault = answered.messages[-1].fault
                        log.error("%s answers with a damaged record, the rest is left out: %s", name, fault)
                    # The index stores hashes only, so entries of other topics and keys may match.
                    found.extend(each for each in answered.messages if each.topic == topic and matches(each))
                elif response.code != ResponseCode.QUERY_NOT_FOUND:
                    failures.append(refusal(response, address, f"looking for {header.key!r}"))
            except RmqError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            for name, address in masters.items():
                group.start_soon(ask, name, address)
        if failures and not found:
            raise failures[0]
        return sorted(
            found, key=lambda message: (message.store_timestamp_ms, message.queue, message.queue_offset)
        )

    async def _await_route(self, topic: str, wanted: dict[str, tuple[int, int]], wait_ms: int) -> None:
        """Wait until the route lists these brokers with these numbers of read and write queues."""
        with anyio.move_on_after(wait_ms / 1000) as scope:
            while True:
                data = await self.route(topic)
                queues = data.queue_datas if data is not None else []
                if (
                    wanted.items()
                    <= {
                        each.broker_name: (each.read_queue_nums, each.write_queue_nums) for each in queues
                    }.items()
                ):
                    return
                await anyio.sleep(ROUTE_POLL_S)
        if scope.cancelled_caught and wait_ms > 0:
            log.warning(
                "topic %s is on %s, but no name server listed it within %d ms",
                topic,
                ", ".join(wanted),
                wait_ms,
            )

    async def _fresh_route(self, topic: str) -> Route:
        self._instance.routes.forget(topic)
        return await self._instance.routes.for_reading(topic)

    async def _broker_name(self, address: str) -> str:
        """The name of the broker at an address; the address itself when the name servers do not know it (for
        example behind address translation)."""
        for name, data in (await self.cluster_info()).broker_addr_table.items():
            if address in data.broker_addrs.values():
                return name
        return address

    async def _call(self, address: str, command: Command, doing: str) -> Command:
        return await self._instance.call(address, command, doing, ADMIN_TIMEOUT_MS)


def _pairs(answer: Command) -> dict[str, str]:
    """Settings in the form of properties."""
    text = answer.body.decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def masters_of(route: TopicRouteData) -> dict[str, str]:
    """Broker name -> address of the masters in a route."""
    return {broker.broker_name: broker.master for broker in route.broker_datas if broker.master is not None}


def queue_of(text: str) -> MessageQueue:
    """Decode a queue that is a key in a body. Raises DecodeError."""
    try:
        return msgspec.json.decode(text, type=MessageQueue)
    except msgspec.DecodeError as error:
        raise DecodeError(f"{text!r} is not a queue: {error}") from error
