"""The filters of pulls: from the request, or from the subscription in the group's heartbeat (Java:
PullMessageProcessor, ExpressionMessageFilter, ExpressionForRetryMessageFilter; behaviour sheet, C5, E5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rmqkit.broker.clients import ClientTable
from rmqkit.broker.pulling.filter_cache import FilterCache, FilterKey, filter_key
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.config import Config
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.names import RETRY_PREFIX
from rmqkit.model.subscription import SUBSCRIBE_ALL, TAG, SubscriptionData
from rmqkit.model.sysflag import PULL_SUBSCRIPTION
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.filter import Compile, CompiledFilter, FilterIndex
from rmqkit.plugin.loader import Registry
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.headers import PullMessageRequestHeader
from rmqkit.protocol.record import peek_properties


class SubscribedFilters:
    """Compiles and caches filters.

    cache     filters in use
    index     the filters of groups, None without a plugin that keeps them

    `extensions`: whether the store's queues have extensions, which hold the bit maps.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        clock: Clock,
        clients: ClientTable,
        groups: GroupTable,
        extensions: bool,
    ) -> None:
        self._config = config
        self._servers = registry.filter_servers
        self._clients = clients
        self._groups = groups
        self._extensions = extensions
        self.cache = FilterCache()
        self.index = first_index(config, registry, clock, self.compiled)
        if self.index is not None:
            clients.on_subscribe.append(self.index.subscribe)
            clients.on_group_end.append(self.index.leave)

    def configure(self, config: Config) -> None:
        """Use changed settings."""
        self._config = config
        if self.index is not None:
            self.index.configure(config)

    def load(self) -> None:
        """Read the filters of groups. Raises ConfigError when they are damaged."""
        if self.index is not None:
            self.index.load()

    async def persist(self) -> None:
        """Write what has changed. Raises OSError, and writes again next time."""
        if self.index is not None:
            await self.index.persist()

    def of(self, header: PullMessageRequestHeader) -> CompiledFilter:
        """The filter of a pull. Raises RequestRefused."""
        group, key = header.consumer_group, None
        if header.sys_flag & PULL_SUBSCRIPTION:
            kind, expression = header.expression_type or TAG, header.subscription or SUBSCRIBE_ALL
            self.check_support(kind)
            key = filter_key(kind, header.topic, group, expression, None)
            found = self.cache.get(key)
            if found is not None:
                return found
            try:
                subscription = self._servers[kind].subscription(header.topic, expression, header.sub_version)
            except ValueError as error:
                raise _unreadable(expression, error) from error
        else:
            subscription = self._subscribed(header)
            self.check_support(subscription.expression_type or TAG)
        try:
            compiled = self.compiled(subscription, group, key)
        except ValueError as error:
            raise _unreadable(subscription.sub_string, error) from error
        if key is None and compiled.unit is None and self._extensions and not subscription.is_tag:
            compiled.unit = None if self.index is None else self.index.unit(subscription, group)
        return compiled

    def forget_group(self, group: str) -> None:
        """A group was deleted."""
        if self.index is not None:
            self.index.forget_group(group)

    def check_support(self, kind: str) -> None:
        """Check that this broker can filter by an expression type. Raises RequestRefused for an expression
        type without a filter server, and for one that the settings forbid."""
        server = self._servers.get(kind)
        if server is None:
            why = f"no plugin filters by expressions of type {kind[:100]!r}"
        else:
            why = server.refusal(self._config)
        if why:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, why)

    def compiled(
        self, subscription: SubscriptionData, group: str, key: FilterKey | None = None
    ) -> CompiledFilter:
        """The filter of a group, cached by `key`, or by what its subscription says. Raises ValueError when
        the expression does not parse."""
        kind, topic = subscription.expression_type or TAG, subscription.topic
        key = key or filter_key(kind, topic, group, subscription.sub_string, subscription)
        found = self.cache.get(key)
        if found is None:
            server = self._servers.get(kind)
            if server is None:
                raise ValueError(f"no plugin filters by expressions of type {kind[:100]!r}")
            index = self.index
            if index is not None and index.filters_retries and kind != TAG and topic.startswith(RETRY_PREFIX):
                found = CompiledFilter(records=partial(self._retried, index, group))
            else:
                found = server.compile(subscription, group)
            self.cache.put(key, found)
        return found

    def _retried(self, index: FilterIndex, group: str, records: Sequence[Buffer]) -> list[bool]:
        """The records of a retry topic, by the group's filters for the topics that they come from. A record
        whose topic has no filter, or one that is asynchronous, matches."""
        return [self._matches_again(index, group, record) for record in records]

    def _matches_again(self, index: FilterIndex, group: str, record: Buffer) -> bool:
        try:
            topic = props.decode_bytes(peek_properties(record)).get(props.RETRY_TOPIC)
        except DecodeError:
            return False
        data = None if topic is None else index.get(topic, group)
        if data is None:
            return True
        try:
            compiled = self.compiled(data.subscription, group)
        except ValueError:
            return True
        return compiled.records is None or bool(compiled.records([record])[0])

    def _subscribed(self, header: PullMessageRequestHeader) -> SubscriptionData:
        """The subscription of the group's last heartbeat."""
        name, topic = header.consumer_group, header.topic
        group = self._clients.consumers.get(name)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {name} has sent no heartbeat to this broker yet",
            )
        settings = self._groups.configs.get(name)
        if settings is not None and not settings.consume_broadcast_enable and group.broadcasting:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"consumer group {name} may not consume by broadcasting"
            )
        subscription = group.subscriptions.get(topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {name} has not subscribed to {topic}: all its members must subscribe to the"
                " same topics",
            )
        if subscription.sub_version < header.sub_version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of {name} to {topic} is older than the request's",
            )
        if not subscription.is_tag and self.index is not None:
            data = self.index.get(topic, name)
            if data is None:
                raise RequestRefused(
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    "The broker's consumer filter data is not exist!Your expression may be wrong!",
                )
            if data.client_version < header.sub_version:
                raise RequestRefused(
                    ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
                )
        return subscription


def first_index(config: Config, registry: Registry, clock: Clock, compiled: Compile) -> FilterIndex | None:
    """The index that a broker uses, not loaded yet. Raises ConfigError."""
    factory = next(iter(registry.filter_indexes.values()), None)
    return None if factory is None else factory(config, clock, compiled)


def _unreadable(expression: str, error: ValueError) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"the subscription {expression[:200]!r} cannot be parsed: {error}",
    )
