"""Who has subscribed which lite topics, and which of these a client has to look at. Nothing here does I/O;
times in ms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import define, field

from rmqkit.plugin.request import Peer

#: Of the names of lite topics, all of them.
ALL = "*"
#: Group and client.
ClientKey = tuple[str, str]


@define(eq=False)
class Subscriber:
    """A client of a group with its lite topics of one topic.

    queues      the queues of its lite topics, in the order of subscription
    has_all     whether it has all lite topics of its topic
    ready       the queues at which it has to look, the first one next
    said_ms     when it has said its subscriptions last
    peer        where its last request about subscriptions came from
    attempt     the attempt id of its last pop with one, and the queues of that answer
    """

    group: str
    client_id: str
    topic: str
    said_ms: int = 0
    popped_ms: int = 0
    has_all: bool = False
    queues: dict[str, None] = field(factory=dict)
    ready: dict[str, None] = field(factory=dict)
    peer: Peer | None = None
    attempt: tuple[str, Sequence[str]] | None = None

    @property
    def key(self) -> ClientKey:
        return self.group, self.client_id


class Subscriptions:
    """The subscriptions of a broker. A queue is known by the name that it has in the store."""

    def __init__(self) -> None:
        self.clients: dict[ClientKey, Subscriber] = {}
        #: Number of subscribed lite topics of all clients.
        self.count = 0
        self._of_queue: dict[str, dict[Subscriber, None]] = {}
        self._of_all: dict[str, dict[Subscriber, None]] = {}

    def of(self, group: str, client_id: str) -> Subscriber | None:
        return self.clients.get((group, client_id))

    def said(self, group: str, client_id: str, topic: str, now_ms: int) -> Subscriber:
        """The client, which says something of its subscriptions. One that has gone to another topic has
        none."""
        found = self.clients.get((group, client_id))
        if found is not None and found.topic != topic:
            self.forget(found)
            found = None
        if found is None:
            found = self.clients[group, client_id] = Subscriber(group, client_id, topic)
        found.said_ms = now_ms
        return found

    def add(self, client: Subscriber, queues: Iterable[str]) -> None:
        """Subscribe; what was subscribed before stays. The client looks at all of these."""
        for name in queues:
            if name not in client.queues:
                client.queues[name] = None
                self._of_queue.setdefault(name, {})[client] = None
                self.count += 1
            client.ready[name] = None

    def add_all(self, client: Subscriber, queues: Iterable[str]) -> None:
        """Subscribe all lite topics of the topic, of which `queues` are there now."""
        client.has_all = True
        self._of_all.setdefault(client.topic, {})[client] = None
        client.ready |= dict.fromkeys(queues)

    def replace(self, client: Subscriber, queues: Sequence[str]) -> None:
        """Subscribe these, and no others."""
        wanted = set(queues)
        self.remove(client, [name for name in client.queues if name not in wanted])
        self.add(client, queues)

    def remove(self, client: Subscriber, queues: Iterable[str]) -> None:
        """End subscriptions; unknown ones are passed over."""
        for name in queues:
            if name not in client.queues:
                continue
            del client.queues[name]
            self.count -= 1
            client.ready.pop(name, None)
            others = self._of_queue[name]
            del others[client]
            if not others:
                del self._of_queue[name]

    def forget(self, client: Subscriber) -> None:
        """A client is gone."""
        self.remove(client, list(client.queues))
        if client.has_all:
            others = self._of_all[client.topic]
            del others[client]
            if not others:
                del self._of_all[client.topic]
        self.clients.pop(client.key, None)

    def expired(self, before_ms: int) -> list[Subscriber]:
        """The clients that have said nothing since."""
        return [each for each in self.clients.values() if each.said_ms < before_ms]

    def subscribers(self, topic: str, queue: str, group: str | None = None) -> Iterator[Subscriber]:
        """Who has subscribed a queue, of all groups or one."""
        for table in (self._of_queue.get(queue), self._of_all.get(topic)):
            for client in table or ():
                if group is None or client.group == group:
                    yield client

    def topics(self) -> dict[str, set[str]]:
        """Topic -> the groups that have subscribed anything of it."""
        found: dict[str, set[str]] = {}
        for client in self.clients.values():
            found.setdefault(client.topic, set()).add(client.group)
        return found


__all__ = ["ALL", "ClientKey", "Subscriber", "Subscriptions"]
