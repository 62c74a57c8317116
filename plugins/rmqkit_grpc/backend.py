"""The servers behind a door for gRPC, as its calls see them: the broker in this process, or a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from rmqkit.plugin.role import Role
from rmqkit_grpc.places import Broadcasts

if TYPE_CHECKING:
    import msgspec

    from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
    from rmqkit.plugin.clock import Clock
    from rmqkit.plugin.request_broker import RequestBroker


@frozen
class ClientCounts:
    """The clients of a door: connections, and the producers and consumers among them."""

    connections: int
    producers: int
    consumers: int


#: A request that a backend needs before it knows something: its code and its header.
Question = tuple[int, "msgspec.Struct"]


class Backend(ABC):
    """What calls must know before they make requests.

    A request names the broker that it is for in its header's `bname`, as requests of Java's clients do.
    """

    clock: Clock
    #: Where clients are whose groups broadcast.
    broadcasts: Broadcasts

    @property
    @abstractmethod
    def max_message_size(self) -> int:
        """Of a message's body, in bytes."""

    def questions(self, topic: str | None = None, group: str | None = None) -> Sequence[Question]:
        """Requests to be answered before this topic and this group are known; the answers need not be
        looked at."""
        return ()

    @abstractmethod
    def topic(self, name: str) -> TopicConfig | None:
        """The settings of a topic; None for an unknown one."""

    @abstractmethod
    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """The settings of a group; None for an unknown one."""

    @abstractmethod
    def write_queues(self, topic: str) -> int:
        """The number of queues of a topic, of all brokers, that take messages; 0 for an unknown topic."""

    @abstractmethod
    def write_queue(self, topic: str, at: int) -> tuple[str, int]:
        """One of these queues, in the order of brokers and numbers: its broker and its id."""

    @abstractmethod
    def write_queue_of_any(self, topic: str, queue_id: int) -> tuple[str, int]:
        """A queue with this id of some broker, or the last one where it has fewer."""

    @abstractmethod
    def broker_for(self, topic: str, named: str) -> str:
        """The broker for a request that names one, or none. Raises Refusal when that is not a broker of this
        door."""

    @abstractmethod
    def brokers(self, topic: str) -> Sequence[str]:
        """All brokers that have a topic."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the broker, or of the proxy."""

    @abstractmethod
    def everywhere(self) -> Sequence[str]:
        """All brokers."""

    @abstractmethod
    def clients(self) -> ClientCounts:
        """The clients that are here now."""

    @property
    @abstractmethod
    def serves(self) -> bool:
        """Whether clients are served at present."""

    @property
    @abstractmethod
    def on_change(self) -> list[Callable[[], None]]:
        """Functions that are called when `serves` may have changed."""


class BrokerBackend(Backend):
    """The broker of this process."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._name = broker.config.broker_name
        self.clock = broker.clock
        self.broadcasts = Broadcasts()

    @property
    def max_message_size(self) -> int:
        return self._broker.config.max_message_size

    def topic(self, name: str) -> TopicConfig | None:
        return self._broker.topics.get(name)

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        return self._broker.groups.configs.get(name)

    def write_queues(self, topic: str) -> int:
        config = self._broker.topics.get(topic)
        return 0 if config is None else config.write_queue_nums

    def write_queue(self, topic: str, at: int) -> tuple[str, int]:
        return self._name, at

    def write_queue_of_any(self, topic: str, queue_id: int) -> tuple[str, int]:
        return self._name, min(queue_id, self.write_queues(topic) - 1)

    def broker_for(self, topic: str, named: str) -> str:
        # Clients of one endpoint name its broker, or what they were told before it was renamed.
        return self._name

    def brokers(self, topic: str) -> Sequence[str]:
        return (self._name,)

    @property
    def name(self) -> str:
        return self._name

    def everywhere(self) -> Sequence[str]:
        return (self._name,)

    def clients(self) -> ClientCounts:
        """Those of remoting as well."""
        table = self._broker.clients
        producers = {peer for group in table.producers.values() for peer in group}
        consumers = {peer for group in table.consumers.values() for peer in group.members}
        return ClientCounts(len(producers | consumers), len(producers), len(consumers))

    @property
    def serves(self) -> bool:
        """A broker that lost its role does not."""
        return self._broker.role.current is not Role.FENCED

    @property
    def on_change(self) -> list[Callable[[], None]]:
        return self._broker.role.on_change


__all__ = ["Backend", "BrokerBackend", "Question"]
