"""The lite topics of one broker: what is stored, who has subscribed it, and whom a message wakes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model.attributes import EXCLUSIVE, LITE_SUB_MODEL
from rmqkit.model.message_type import TopicMessageType, declared_type
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import NotifyUnsubscribeLiteRequestHeader
from rmqkit_pop.engine import Engine
from rmqkit_pop.leases import QueueKey
from rmqkit_pop.lite.subscriptions import Subscriber, Subscriptions
from rmqkit_pop.settings import PopSettings


class LiteTopics:
    """Topic -> the queues of its lite topics, and the subscriptions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.broker = engine.broker
        self.subscriptions = Subscriptions()
        self.queues: dict[str, dict[str, None]] = {}
        #: Number of all lite topics.
        self.count = 0
        #: Queues whose last message may not be read yet, with their ends.
        self.unread: dict[str, int] = {}
        #: Set when there is one more.
        self.has_unread = trio.Event()
        engine.woken = self._freed
        self.broker.topics.on_turn.append(self._turned)

    @property
    def settings(self) -> PopSettings:
        """The present ones."""
        return self.engine.settings

    @property
    def _store(self) -> MessageStore:
        return self.broker.store

    def is_parent(self, topic: str) -> bool:
        """Whether a topic has lite topics."""
        config = self.broker.topics.configs.get(topic)
        return config is not None and declared_type(config.attributes) is TopicMessageType.LITE

    def load(self) -> None:
        """Find out what is stored."""
        self.queues, self.count = {}, 0
        self.unread.clear()
        for name in self._store.queues():
            parts = names.lite_parts(name)
            if parts is not None:
                self._know(parts[0], name)

    def _know(self, topic: str, name: str) -> None:
        found = self.queues.setdefault(topic, {})
        if name not in found:
            found[name] = None
            self.count += 1

    def stored(self, topic: str, name: str, end: int) -> None:
        """The queue of a lite topic has a message before the offset `end`, which can be read now or soon."""
        self._know(topic, name)
        store = self._store
        if store.written_by_append and not store.positions.is_gated:
            self.wake(topic, name)
        else:
            self.unread[name] = end
            self.has_unread.set()

    def readable(self) -> None:
        """Let those look who have subscribed what can be read by now."""
        for name, end in list(self.unread.items()):
            if self._store.max_offset(name, 0) >= end:
                del self.unread[name]
                parts = names.lite_parts(name)
                assert parts is not None, "only such queues are entered"
                self.wake(parts[0], name)

    def wake(self, topic: str, name: str, group: str | None = None) -> None:
        """Let the clients look that have subscribed a queue, of all groups or one."""
        for client in self.subscriptions.subscribers(topic, name, group):
            client.ready[name] = None
            self.wake_client(client)

    def wake_client(self, client: Subscriber) -> None:
        """Run the pop of a client again."""
        self.broker.held.arrived(*waiting_key(*client.key), 1)

    def _freed(self, key: QueueKey) -> None:
        """A lease of a queue has ended."""
        parts = names.lite_parts(key.topic)
        if parts is not None:
            self.wake(parts[0], key.topic, key.group)

    def is_exclusive(self, group: str) -> bool:
        """Whether only one client of a group may have a lite topic."""
        config = self.broker.groups.configs.get(group)
        return config is not None and config.attributes.get(LITE_SUB_MODEL) == EXCLUSIVE

    def take_over(self, client: Subscriber, queues: Iterable[str]) -> list[str]:
        """End the subscriptions that others of its group have; these are told. Returns the queues which they
        had."""
        taken = []
        for name in queues:
            for other in list(self.subscriptions.subscribers(client.topic, name, client.group)):
                if other is not client and name in other.queues:
                    self.subscriptions.remove(other, [name])
                    self.tell(other, name)
                    taken.append(name)
        return taken

    def tell(self, client: Subscriber, name: str) -> None:
        """Tell a client that it has lost a subscription."""
        parts = names.lite_parts(name)
        if client.peer is not None and parts is not None:
            header = NotifyUnsubscribeLiteRequestHeader(
                lite_topic=parts[1], consumer_group=client.group, client_id=client.client_id
            )
            client.peer.push(request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, header, oneway=True))

    def delete(self, topic: str, name: str) -> None:
        """Delete a lite topic: its messages, what groups have consumed, subscriptions. Raises OSError,
        StoreNotWritable, before anything else is changed."""
        self._store.delete_queue(name, 0)
        for client in list(self.subscriptions.subscribers(topic, name)):
            client.ready.pop(name, None)
            if name in client.queues:
                self.subscriptions.remove(client, [name])
                self.tell(client, name)
        self.engine.forget_queues(name)
        self.broker.offsets.forget_topic(name)
        self.unread.pop(name, None)
        known = self.queues.get(topic, {})
        if name in known:
            del known[name]
            self.count -= 1

    def _turned(self, topic: str) -> None:
        """A topic is about to be deleted, or was changed."""
        if topic in self.queues and self.broker.topics.get(topic) is None:
            for name in list(self.queues[topic]):
                with suppress(RequestRefused, OSError):
                    self.delete(topic, name)
            self.queues.pop(topic, None)


def waiting_key(group: str, client_id: str) -> tuple[str, int]:
    """The key under which the pops of a client wait; no queue has such a name."""
    return f"{names.LITE_PREFIX}@{group}@{client_id}", 0


def lite_queues(topic: str, lite_topics: Sequence[str]) -> list[str]:
    """The queues of lite topics. Raises ValueError for an illegal name."""
    for each in lite_topics:
        fault = names.lite_topic_fault(each)
        if fault is not None:
            raise ValueError(fault)
    return [names.lite_queue(topic, each) for each in lite_topics]


__all__ = ["LiteTopics", "lite_queues", "waiting_key"]
