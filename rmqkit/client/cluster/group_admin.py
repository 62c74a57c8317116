"""Administration of consumer groups (Java: DefaultMQAdminExtImpl; behaviour sheet, G1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import msgspec
from attrs import frozen

from rmqkit.client.cluster.admin import Admin, masters_of, queue_of
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.client.routing.masters import ADMIN_TIMEOUT_MS, Masters
from rmqkit.errors import BrokerError, ClientError, NoRoute
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.subscription import SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, SubscriptionGroupTable
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    ConsumerClientRequestHeader,
    ConsumerGroupRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    ResetOffsetRequestHeader,
)

#: A time for `reset_to_time`: the end of each queue.
END_MS = -1
#: With this setting of a broker, it sets offsets itself instead of asking the members of the group.
_SETS_OFFSETS = "useServerSideResetOffset"


#: Answers of brokers that have no settings of a group to give.
_WITHOUT_CONFIG = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


@frozen(kw_only=True)
class Progress:
    """How far a group is in one queue.

    committed          the offset where the group continues
    end                the offset of the next message to be stored
    pulled             the offset up to which its members have got messages; `committed` for old brokers
    leased             popped messages before `committed` that are not finished; 0 for other brokers
    last_consumed_ms   store time of the last consumed message in ms since 1970, 0 when there is none
    behind_ms          age of the first message that is not consumed, 0 when there is none; None when the
                       broker does not tell
    """

    committed: int
    end: int
    pulled: int
    last_consumed_ms: int
    behind_ms: int | None = None
    leased: int = 0

    @property
    def lag(self) -> int:
        """Number of messages that are not consumed: `in_flight` and `ready`."""
        return max(self.end - self.committed, 0) + self.leased

    @property
    def ready(self) -> int:
        """Number of messages that no member has got yet."""
        return max(self.end - self.pulled, 0)

    @property
    def in_flight(self) -> int:
        """Number of messages that members have got and not finished."""
        return self.lag - self.ready

    @property
    def beyond(self) -> int:
        """How far the committed offset is beyond the end of the queue: its store was replaced, or a wrong
        offset was committed. 0 otherwise."""
        return max(self.committed - self.end, 0)


@frozen(kw_only=True)
class GroupMemberInfo:
    """One online member: `address` is its socket as seen by the first broker, `version` Java's number of its
    protocol version, `brokers` the brokers that it is connected to. Two members with one client id are two
    processes, as each has one connection to a broker."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


@frozen(kw_only=True)
class GroupConnections:
    """The online members of a group, and its subscriptions according to the last heartbeat: topic ->
    subscription."""

    members: tuple[GroupMemberInfo, ...]
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, SubscriptionData]


class _OffsetWrapper(msgspec.Struct, rename="camel", kw_only=True):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0
    leased: int = 0


class _ConsumeStatsBody(msgspec.Struct, rename="camel", kw_only=True):
    offset_table: dict[str, _OffsetWrapper] = {}


class _TimeSpan(msgspec.Struct, rename="camel", kw_only=True):
    message_queue: MessageQueue
    delay_time: int = 0


class _TimeSpanBody(msgspec.Struct, rename="camel", kw_only=True):
    consume_time_span_set: list[_TimeSpan] = []


class _Connection(msgspec.Struct, rename="camel", kw_only=True):
    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class _ConnectionsBody(msgspec.Struct, rename="camel", kw_only=True):
    connection_set: list[_Connection] = []
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_table: dict[str, SubscriptionData] = {}


class _GroupListBody(msgspec.Struct, rename="camel", kw_only=True):
    group_list: list[str] = []


class _RunningInfoBody(msgspec.Struct, rename="camel", kw_only=True):
    """Java: ConsumerRunningInfo, the part that is used here."""

    subscription_set: list[SubscriptionData] = []
    properties: dict[str, str] = {}


class _ResetBody(msgspec.Struct, rename="camel", kw_only=True):
    offset_table: dict[str, int] = {}


class GroupAdmin:
    """Consumer groups, available as `client.groups`. Only requests that RocketMQ 4.9 and 5 answer are
    sent. Every method raises NameServersUnreachable, BrokerError, ConnectFailed, ConnectionLost,
    RequestTimeout and DecodeError."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._names = instance.names
        self._admin = Admin(instance)
        self._masters = Masters(instance)
        self._offsets = QueueOffsets(instance)

    async def configs(self) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """The settings of all groups, with a namespace those of it: group -> broker name -> settings,
        sorted."""
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for name, address in (await self._masters.addresses()).items():
            command = request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            response = await self._call(address, command, f"asking {name} for its consumer groups")
            table = response.decode_body(SubscriptionGroupTable).subscription_group_table
            for group in self._names.own(table):
                config = table[self._names.wrapped(group)]
                found.setdefault(group, {})[name] = msgspec.structs.replace(config, group_name=group)
        return dict(sorted(found.items()))

    @in_namespace
    async def config(self, group: str) -> SubscriptionGroupConfig | None:
        """The settings of a group on the first broker that has it, by name; None when no broker has it, or
        none supports GET_SUBSCRIPTIONGROUP_CONFIG."""
        for name, address in (await self._masters.addresses()).items():
            command = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group=group))
            try:
                response = await self._call(address, command, f"asking {name} for consumer group {group!r}")
            except BrokerError as error:
                if error.code not in _WITHOUT_CONFIG:
                    raise
            else:
                return response.decode_body(SubscriptionGroupConfig)
        return None

    @in_namespace
    async def consuming(self, topic: str) -> list[str]:
        """The groups that have offsets in the topic, or online members that subscribe to it, sorted. Raises
        NoRoute."""
        found: set[str] = set()
        for address in (await self._masters_of(topic)).values():
            command = request(
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GetTopicStatsInfoRequestHeader(topic=topic)
            )
            response = await self._call(address, command, f"asking who consumes topic {topic!r}")
            found.update(response.decode_body(_GroupListBody).group_list)
        return sorted(map(self._names.plain, found))

    @in_namespace
    async def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, Progress]:
        """How far the group is in each queue of a topic, by default of all topics that it consumes, sorted;
        without `behind_ms`. Empty for an unknown group."""
        found: dict[MessageQueue, Progress] = {}
        for address in (await self._masters.addresses()).values():
            header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
            command = request(RequestCode.GET_CONSUME_STATS, header)
            try:
                response = await self._call(address, command, f"asking for the progress of group {group!r}")
            except BrokerError as error:
                # RocketMQ 4 answers so when the topic is on other brokers only.
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    continue
                raise
            for key, entry in response.decode_body(_ConsumeStatsBody).offset_table.items():
                found[queue_of(key)] = Progress(
                    committed=entry.consumer_offset,
                    end=entry.broker_offset,
                    pulled=max(entry.pull_offset - entry.leased, entry.consumer_offset),
                    leased=entry.leased,
                    last_consumed_ms=entry.last_timestamp,
                )
        return dict(sorted(found.items()))

    @in_namespace
    async def behind(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """For each queue the age in ms of the first message that the group has not consumed, measured by the
        broker's clock; 0 when there is none. Raises NoRoute."""
        found: dict[MessageQueue, int] = {}
        for address in (await self._masters_of(topic)).values():
            header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
            command = request(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            response = await self._call(address, command, f"asking how old the messages of {topic!r} are")
            for span in response.decode_body(_TimeSpanBody).consume_time_span_set:
                found[span.message_queue] = max(span.delay_time, 0)
        return dict(sorted(found.items()))

    @in_namespace
    async def connections(self, group: str) -> GroupConnections | None:
        """The online members of a group; None when there are none."""
        # A client has one connection to each broker. Those of one id are told apart by host and number.
        members: dict[tuple[str, str, int], tuple[_Connection, list[str]]] = {}
        last: _ConnectionsBody | None = None
        subscriptions: dict[str, SubscriptionData] = {}
        for name, address in (await self._masters.addresses()).items():
            header = ConsumerGroupRequestHeader(consumer_group=group)
            command = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            try:
                response = await self._call(address, command, f"asking for the members of group {group!r}")
            except BrokerError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            last = response.decode_body(_ConnectionsBody)
            subscriptions |= last.subscription_table
            counts = Counter[tuple[str, str]]()
            for each in last.connection_set:
                whose = each.client_id, each.client_addr.rpartition(":")[0]
                members.setdefault((*whose, counts[whose]), (each, []))[1].append(name)
                counts[whose] += 1
        if last is None or not members:
            return None
        return GroupConnections(
            members=tuple(
                GroupMemberInfo(
                    client_id=each.client_id,
                    address=each.client_addr,
                    language=each.language,
                    version=each.version,
                    brokers=tuple(brokers),
                )
                for _, (each, brokers) in sorted(members.items(), key=lambda item: item[0])
            ),
            consume_type=last.consume_type or "",
            message_model=last.message_model or "",
            consume_from_where=last.consume_from_where or "",
            subscriptions=self._names.outward(dict(sorted(subscriptions.items()))),
        )

    @in_namespace
    async def subscriptions_of(self, group: str, member: GroupMemberInfo) -> dict[str, SubscriptionData]:
        """The subscriptions of one member as it reports them itself: topic -> subscription. A heartbeat
        overwrites those of the other members at the broker, therefore `connections` does not contain them."""
        addresses = await self._masters.addresses()
        header = ConsumerClientRequestHeader(consumer_group=group, client_id=member.client_id)
        command = request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        doing = f"asking member {member.client_id} of group {group!r} for its subscriptions"
        response = await self._call(addresses[member.brokers[0]], command, doing)
        found = response.decode_body(_RunningInfoBody).subscription_set
        return {each.topic: each for each in sorted(found, key=lambda each: each.topic)}

    @in_namespace
    async def put(
        self, group: str, config: SubscriptionGroupConfig, *, broker: str | None = None
    ) -> list[str]:
        """Create the group on all masters, or that of one broker, or replace its settings; its name in them
        does not count. Returns the broker names. When cancelled, some brokers may have the new settings."""
        body = compact(msgspec.structs.replace(config, group_name=group))
        command = partial(request, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        return await self._masters.change(command, f"changing group {group!r}", broker=broker)

    @in_namespace
    async def delete(self, group: str) -> list[str]:
        """Delete the group and its offsets on all masters; its retry and dead-letter topics stay. Online
        members create the group again. Returns the broker names."""
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=True)
        command = partial(request, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        return await self._masters.change(command, f"deleting group {group!r}")

    # --- offsets --------------------------------------------------------------------------------------------

    @in_namespace
    async def offsets_at(self, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """The offset of the first message stored at `time_ms` or later in each queue (0: the first message;
        `END_MS`: the end), sorted. Raises NoRoute."""
        queues = (await self._instance.routes.for_reading(topic)).read_queues
        return {queue: await self._at(queue, time_ms) for queue in queues}

    @in_namespace
    async def reset_to_time(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Let the group continue in every queue of the topic at the first message stored at `time_ms` or
        later (0: the first message; `END_MS`: the end). Returns the new offsets.

        The brokers pass the offsets on to online members. A group without members is reset as well. Raises
        NoRoute. When cancelled, the offsets of some brokers may be set.
        """
        offsets: dict[MessageQueue, int] = {}
        for name, address in (await self._masters_of(topic)).items():
            header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=time_ms, is_force=True)
            try:
                offsets |= await self._reset(address, header)
            except BrokerError as error:
                # RocketMQ 4 has only members reset, and wants a committed offset in every queue.
                if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                    raise
                if await self.connections(group) is not None:
                    raise
                queues = (await self._instance.routes.for_reading(topic)).read_queues
                mine = [queue for queue in queues if queue.broker_name == name]
                offsets |= await self._commit_all(
                    group, {each: await self._at(each, time_ms) for each in mine}
                )
        return dict(sorted(offsets.items()))

    @in_namespace
    async def reset_to_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Let the group continue at an offset of one queue.

        Raises ClientError for an offset outside the queue, and when the group has online members and its
        broker cannot tell them an offset (RocketMQ 4, or `useServerSideResetOffset` off): they would commit
        their own again.
        """
        first, end = await self._offsets.min_offset(queue), await self._offsets.max_offset(queue)
        if not first <= offset <= end:
            raise ClientError(f"offset {offset} is not in {queue}, which has offsets {first} to {end}")
        address = await self._instance.reader_address(queue)
        if (await self._admin.broker_settings(address)).get(_SETS_OFFSETS) != "true":
            if await self.connections(group) is not None:
                raise ClientError(
                    f"group {group!r} has online members, and {queue.broker_name} can only reset them to a"
                    " time: reset to a time, or stop the members first"
                )
            await self._commit_all(group, {queue: offset})
            return
        header = ResetOffsetRequestHeader(
            topic=queue.topic,
            group=group,
            timestamp=END_MS,
            is_force=True,
            queue_id=queue.queue_id,
            offset=offset,
        )
        await self._reset(address, header)

    # --- within ---------------------------------------------------------------------------------------------

    async def _reset(self, address: str, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        command = request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        doing = f"resetting group {header.group!r} in topic {header.topic!r}"
        response = await self._call(address, command, doing)
        table = response.decode_body(_ResetBody).offset_table
        return {queue_of(key): offset for key, offset in table.items()}

    async def _commit_all(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        for queue, offset in offsets.items():
            await self._offsets.commit(group, queue, offset)
        return offsets

    async def _at(self, queue: MessageQueue, time_ms: int) -> int:
        if time_ms == END_MS:
            return await self._offsets.max_offset(queue)
        if time_ms == 0:
            return await self._offsets.min_offset(queue)
        return await self._offsets.offset_for_time(queue, time_ms)

    async def _masters_of(self, topic: str) -> dict[str, str]:
        data = await self._instance.name_servers.route(topic)
        if data is None:
            raise NoRoute(topic, "no broker has it; `rmqkit topic list` lists the topics")
        return masters_of(data)

    async def _call(self, address: str, command: Command, doing: str) -> Command:
        return await self._instance.call(address, command, doing, ADMIN_TIMEOUT_MS)
