"""Who is connected: producers and consumer groups with their subscriptions (Java: ProducerManager, ConsumerManager; behaviour sheet, C7).

Plain state; time is passed in. A membership or topic change of a group calls `on_group_change`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import Factory, define

from rmqkit.abc import Peer
from rmqkit.model.subscription import BROADCASTING, ConsumerData, SubscriptionData


@define(eq=False)
class ClientInfo:
    """One connection's client (Java: ClientChannelInfo)."""

    client_id: str
    peer: Peer
    language: str | None
    version: int
    last_seen_ms: int


@define(eq=False)
class ConsumerGroup:
    """A consumer group that is online: the last heartbeat's settings and subscriptions count for all members (Java: ConsumerGroupInfo)."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Peer, ClientInfo] = Factory(dict)
    subscriptions: dict[str, SubscriptionData] = Factory(dict)

    @property
    def broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.members.values()]


class ClientTable:
    """All clients of a broker."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[Peer, ClientInfo]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.on_group_change: list[Callable[[ConsumerGroup], None]] = []

    def register_producer(self, group: str, client: ClientInfo) -> None:
        self.producers.setdefault(group, {})[client.peer] = client

    def register_consumer(self, data: ConsumerData, client: ClientInfo, *, notify: bool) -> bool:
        """True when the membership or the set of topics changed. A changed expression alone is taken over silently, as in Java. A heartbeat
        without a subscription set leaves the subscriptions as they are."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name, "", "", "")
        group.consume_type = data.consume_type or group.consume_type
        group.message_model = data.message_model or group.message_model
        group.consume_from_where = data.consume_from_where or group.consume_from_where
        known = group.members.get(client.peer)
        changed = known is None or known.client_id != client.client_id
        group.members[client.peer] = client
        if data.subscription_data_set is not None and _subscribe(group, data.subscription_data_set):
            changed = True
        if changed and notify:
            self._tell(group)
        return changed

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None, *, notify: bool) -> None:
        if producer_group:
            producers = self.producers.get(producer_group, {})
            for peer in [peer for peer, client in producers.items() if client.client_id == client_id]:
                del producers[peer]
            if not producers:
                self.producers.pop(producer_group, None)
        if consumer_group and (group := self.consumers.get(consumer_group)):
            for peer in [peer for peer, client in group.members.items() if client.client_id == client_id]:
                del group.members[peer]
                self._left(group, notify)

    def drop_peer(self, peer: Peer) -> None:
        """A connection ended: all of its clients leave at once."""
        for name in [name for name, producers in self.producers.items() if peer in producers]:
            del self.producers[name][peer]
            if not self.producers[name]:
                del self.producers[name]
        for group in [group for group in self.consumers.values() if peer in group.members]:
            del group.members[peer]
            self._left(group, True)

    def silent_peers(self, now_ms: int, timeout_ms: int) -> set[Peer]:
        """Peers with a client that has sent no heartbeat for that long."""
        return {client.peer for client in self._all() if client.last_seen_ms + timeout_ms < now_ms}

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def find(self, client_id: str) -> ClientInfo | None:
        """A client by its id, producer or consumer."""
        return next((client for client in self._all() if client.client_id == client_id), None)

    def groups_consuming(self, topic: str) -> list[str]:
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]

    def _all(self) -> Iterator[ClientInfo]:
        """Producers first; a client of several groups comes several times."""
        for producers in self.producers.values():
            yield from producers.values()
        for group in self.consumers.values():
            yield from group.members.values()

    def _left(self, group: ConsumerGroup, notify: bool) -> None:
        if not group.members:
            self.consumers.pop(group.name, None)
        elif notify:
            self._tell(group)

    def _tell(self, group: ConsumerGroup) -> None:
        for listener in self.on_group_change:
            listener(group)


def _subscribe(group: ConsumerGroup, subscriptions: list[SubscriptionData]) -> bool:
    """Take over a heartbeat's subscriptions; True when a topic came or went. An older version of a known topic is ignored."""
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
    return changed
