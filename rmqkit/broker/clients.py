"""Connected producers and consumer groups with their subscriptions (Java: ProducerManager, ConsumerManager;
behaviour sheet, C7).

Plain state; time is passed in. A change of a group's members or topics calls `on_group_change`, each
heartbeat with subscriptions `on_subscribe`, and the end of a group's last member `on_group_end`. Memberships
are found by connection and by client id, so that the cost of a heartbeat, a closed connection or a reply does
not depend on the size of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import Factory, define

from rmqkit.errors import RequestRefused
from rmqkit.limits import (
    MAX_CLIENT_ID_LENGTH,
    MAX_GROUP_SUBSCRIPTION_BYTES,
    MAX_GROUPS_PER_CONNECTION,
    MAX_MEMBERSHIPS,
    MAX_SUBSCRIPTION_BYTES,
)
from rmqkit.log_limit import limited_logger
from rmqkit.model.subscription import BROADCASTING, ConsumerData, SubscriptionData
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import ResponseCode

_log = limited_logger(__name__)

#: Memory of a subscription besides its texts, and of each tag and code.
_SUBSCRIPTION_BYTES = 400
_TAG_BYTES = 64


@define(eq=False)
class ClientInfo:
    """The client of one connection (Java: ClientChannelInfo)."""

    client_id: str
    peer: Peer
    language: str | None
    version: int
    last_seen_ms: int


@define(eq=False)
class ConsumerGroup:
    """An online consumer group: settings and subscriptions of the last heartbeat apply to all members (Java:
    ConsumerGroupInfo)."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Peer, ClientInfo] = Factory(dict)
    subscriptions: dict[str, SubscriptionData] = Factory(dict)
    subscription_bytes: int = 0
    #: Client ids of several connections, which have been logged.
    shared_ids: set[str] = Factory(set)

    @property
    def broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.members.values()]


class _Memberships:
    """The groups of each client of each connection, for one kind of group."""

    def __init__(self) -> None:
        self.of_peer: dict[Peer, dict[str, ClientInfo]] = {}
        self._of_id: dict[str, dict[tuple[str, Peer], ClientInfo]] = {}

    def add(self, group: str, client: ClientInfo) -> None:
        groups = self.of_peer.setdefault(client.peer, {})
        known = groups.get(group)
        if known is not None and known.client_id != client.client_id:
            self._forget_id(group, known)
        groups[group] = client
        self._of_id.setdefault(client.client_id, {})[group, client.peer] = client

    def remove(self, group: str, peer: Peer) -> None:
        groups = self.of_peer[peer]
        self._forget_id(group, groups.pop(group))
        if not groups:
            del self.of_peer[peer]

    def first(self, client_id: str) -> ClientInfo | None:
        return next(iter(self._of_id.get(client_id, {}).values()), None)

    def peers(self, client_id: str, group: str) -> list[Peer]:
        """The connections over which a client is a member of a group."""
        return [peer for name, peer in self._of_id.get(client_id, ()) if name == group]

    def _forget_id(self, group: str, client: ClientInfo) -> None:
        same = self._of_id[client.client_id]
        del same[group, client.peer]
        if not same:
            del self._of_id[client.client_id]


class ClientTable:
    """All clients of a broker. `refused` counts registrations refused because of a limit."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[Peer, ClientInfo]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.on_group_change: list[Callable[[ConsumerGroup], None]] = []
        self.on_subscribe: list[Callable[[str, Sequence[SubscriptionData]], None]] = []
        self.on_group_end: list[Callable[[str], None]] = []
        self.refused = 0
        self._producing = _Memberships()
        self._consuming = _Memberships()
        self._memberships = 0
        self._subscription_bytes = 0

    def register_producer(self, group: str, client: ClientInfo) -> None:
        """Enter a producer of a group, or renew its time. Raises RequestRefused when the table is full."""
        members = self.producers.get(group, {})
        if client.peer not in members:
            self._check_room(client)
            self._memberships += 1
        members[client.peer] = client
        self.producers[group] = members
        self._producing.add(group, client)

    def register_consumer(self, data: ConsumerData, client: ClientInfo, *, notify: bool) -> bool:
        """Register a consumer. Returns True when the members or the set of topics changed. A changed
        expression alone is applied silently, as in Java. A heartbeat without subscriptions keeps the present
        ones. Raises RequestRefused when the table is full; nothing is changed then."""
        group = self.consumers.get(data.group_name) or ConsumerGroup(data.group_name, "", "", "")
        known = group.members.get(client.peer)
        self._check_subscriptions(group, data)
        if known is None:
            self._check_room(client)
            self._memberships += 1
        self.consumers[group.name] = group
        group.consume_type = data.consume_type or group.consume_type
        group.message_model = data.message_model or group.message_model
        group.consume_from_where = data.consume_from_where or group.consume_from_where
        changed = known is None or known.client_id != client.client_id
        group.members[client.peer] = client
        self._consuming.add(group.name, client)
        if known is not None:
            self._forget_shared(group, known.client_id)
        if changed:
            self._check_id(group, client)
        if data.subscription_data_set is not None:
            self._subscription_bytes -= group.subscription_bytes
            changed = _subscribe(group, data.subscription_data_set) or changed
            self._subscription_bytes += group.subscription_bytes
            for listener in self.on_subscribe:
                listener(group.name, data.subscription_data_set)
        if changed and notify:
            self._tell(group)
        return changed

    def unregister(
        self, client_id: str, producer_group: str | None, consumer_group: str | None, *, notify: bool
    ) -> None:
        if producer_group:
            for peer in self._producing.peers(client_id, producer_group):
                self._producer_left(producer_group, peer)
        if consumer_group and (group := self.consumers.get(consumer_group)):
            for peer in self._consuming.peers(client_id, consumer_group):
                self._consumer_left(group, peer, notify)

    def drop_peer(self, peer: Peer) -> None:
        """Remove all clients of a connection that has ended."""
        for name in list(self._producing.of_peer.get(peer, ())):
            self._producer_left(name, peer)
        for name in list(self._consuming.of_peer.get(peer, ())):
            self._consumer_left(self.consumers[name], peer, True)

    def silent_peers(self, now_ms: int, timeout_ms: int) -> set[Peer]:
        """Peers with a client that has not sent a heartbeat for this time."""
        return {client.peer for client in self._all() if client.last_seen_ms + timeout_ms < now_ms}

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def find(self, client_id: str) -> ClientInfo | None:
        """A client with this id, producer or consumer."""
        return self._producing.first(client_id) or self._consuming.first(client_id)

    def groups_consuming(self, topic: str) -> list[str]:
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]

    def _all(self) -> Iterator[ClientInfo]:
        """Producers first; a client of several groups occurs several times."""
        for producers in self.producers.values():
            yield from producers.values()
        for group in self.consumers.values():
            yield from group.members.values()

    def _check_room(self, client: ClientInfo) -> None:
        of_peer = len(self._producing.of_peer.get(client.peer, ())) + len(
            self._consuming.of_peer.get(client.peer, ())
        )
        if len(client.client_id) > MAX_CLIENT_ID_LENGTH:
            raise self._refusal(
                f"the client id has {len(client.client_id)} characters, at most {MAX_CLIENT_ID_LENGTH} are"
                " allowed"
            )
        if of_peer >= MAX_GROUPS_PER_CONNECTION:
            raise self._refusal(
                f"this connection is in {of_peer} producer and consumer groups, at most"
                f" {MAX_GROUPS_PER_CONNECTION} are allowed: use further clients for further groups"
            )
        if self._memberships >= MAX_MEMBERSHIPS:
            raise self._refusal(
                f"the clients of this broker are in {self._memberships} groups, and it keeps no more: try"
                " again later"
            )

    def _check_subscriptions(self, group: ConsumerGroup, data: ConsumerData) -> None:
        texts = (data.consume_type, data.message_model, data.consume_from_where)
        size = sum(len(text or "") for text in texts) + sum(map(_size, data.subscription_data_set or ()))
        if size > MAX_GROUP_SUBSCRIPTION_BYTES:
            raise self._refusal(
                f"the subscriptions of the group {group.name} take {size} bytes, at most"
                f" {MAX_GROUP_SUBSCRIPTION_BYTES} are allowed"
            )
        if self._subscription_bytes - group.subscription_bytes + size > MAX_SUBSCRIPTION_BYTES:
            raise self._refusal(
                f"the subscriptions of this broker's clients take {self._subscription_bytes} bytes, and it"
                " keeps no more: try again later"
            )

    def _check_id(self, group: ConsumerGroup, client: ClientInfo) -> None:
        """Log once that a client id is used by several connections of a group."""
        peers = self._consuming.peers(client.client_id, group.name)
        if len(peers) > 1 and client.client_id not in group.shared_ids:
            group.shared_ids.add(client.client_id)
            _log.warning(
                "client id %s is in group %s on %d connections: %s; give each process an id of its own, or"
                " its messages are handled twice",
                client.client_id,
                group.name,
                len(peers),
                ", ".join(peer.remote_text for peer in peers),
            )

    def _forget_shared(self, group: ConsumerGroup, client_id: str) -> None:
        if client_id in group.shared_ids and len(self._consuming.peers(client_id, group.name)) < 2:
            group.shared_ids.discard(client_id)

    def _refusal(self, remark: str) -> RequestRefused:
        self.refused += 1
        return RequestRefused(ResponseCode.SYSTEM_ERROR, remark)

    def _producer_left(self, name: str, peer: Peer) -> None:
        members = self.producers[name]
        del members[peer]
        self._producing.remove(name, peer)
        self._memberships -= 1
        if not members:
            del self.producers[name]

    def _consumer_left(self, group: ConsumerGroup, peer: Peer, notify: bool) -> None:
        client_id = group.members.pop(peer).client_id
        self._consuming.remove(group.name, peer)
        self._memberships -= 1
        self._forget_shared(group, client_id)
        if not group.members:
            del self.consumers[group.name]
            self._subscription_bytes -= group.subscription_bytes
            for listener in self.on_group_end:
                listener(group.name)
        elif notify:
            self._tell(group)

    def _tell(self, group: ConsumerGroup) -> None:
        for listener in self.on_group_change:
            listener(group)


def _subscribe(group: ConsumerGroup, subscriptions: list[SubscriptionData]) -> bool:
    """Apply a heartbeat's subscriptions. Returns True when a topic was added or removed. An older version of
    a known topic is ignored."""
    changed = False
    wanted = {subscription.topic: subscription for subscription in subscriptions}
    for topic, subscription in wanted.items():
        known = group.subscriptions.get(topic)
        if known is None:
            changed = True
        if known is None or subscription.sub_version >= known.sub_version:
            group.subscriptions[topic] = subscription
    for topic in [topic for topic in group.subscriptions if topic not in wanted]:
        del group.subscriptions[topic]
        changed = True
    group.subscription_bytes = sum(map(_size, group.subscriptions.values()))
    return changed


def _size(subscription: SubscriptionData) -> int:
    """Approximate memory of a subscription."""
    texts = (
        len(subscription.topic)
        + len(subscription.sub_string)
        + len(subscription.expression_type or "")
        + sum(map(len, subscription.tags_set))
    )
    return (
        _SUBSCRIPTION_BYTES + texts + _TAG_BYTES * (len(subscription.tags_set) + len(subscription.code_set))
    )
