"""Filter servers: how subscriptions select messages; and what a broker keeps of the filters of groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from attrs import define, field

from rmqkit.config import Config
from rmqkit.limits import FIRST_FILTERED_RECORDS
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.store import RecordsBitMaps, UnitFilter

#: Whole records -> whether each of them matches, in the same order. Raises RequestRefused when the filter
#: cannot be applied any more: the consumer gets its code and text.
RecordsFilter = Callable[[Sequence[Buffer]], Sequence[bool]]
AsyncRecordsFilter = Callable[[Sequence[Buffer]], Awaitable[Sequence[bool]]]


@define
class CompiledFilter:
    """The filter of a group for a topic, in stages. A message that passes `unit` is given to `records` or
    `records_async`, whichever is set.

    unit              whether a message may match, from the tags code of its queue unit alone
    records           for filters that need the records themselves; called in the event loop
    records_async     the same, awaited in a task; cancelled when the consumer has gone
    records_at_once   number of records of the next window; the broker adapts it to the filter's speed, so
                      that a window takes a fraction of a millisecond
    records_per_match how many records were looked at for each that matched, lately; kept by the broker
    records_per_call  number of records of a window that `records` gets at once, at most. Between two calls
                      the time is checked, so a filter that does much for each record takes few
    """

    unit: UnitFilter | None = None
    records: RecordsFilter | None = None
    records_async: AsyncRecordsFilter | None = None
    records_at_once: int = field(default=FIRST_FILTERED_RECORDS, eq=False)
    records_per_match: float = field(default=4.0, eq=False)
    records_per_call: int = FIRST_FILTERED_RECORDS

    @property
    def needs_records(self) -> bool:
        return self.records is not None or self.records_async is not None


class FilterServer(ABC):
    """Turns a subscription of one expression type into a filter (Java: MessageFilter, FilterFactory)."""

    expression_type: str

    @abstractmethod
    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        """The filter of a consumer group, for the topic of the subscription. Raises ValueError with the
        reason when the expression does not parse."""

    def refusal(self, config: Config) -> str:
        """Why a broker with these settings does not filter by this type, empty when it does; asked for each
        pull and subscription."""
        return ""

    def disabled(self) -> Mapping[str, str]:
        """Filters that were disabled because they failed, by name, with the reason; for metrics and
        `rmqkit doctor`."""
        return {}

    @abstractmethod
    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        """A pull request's expression text as a subscription. Raises ValueError like `compile`."""


#: Subscription and group -> the filter. Raises ValueError when the expression does not parse.
Compile = Callable[[SubscriptionData, str], CompiledFilter]


class GroupFilter(Protocol):
    """The filter of a group for a topic, from a heartbeat of the version `client_version`."""

    client_version: int

    @property
    def subscription(self) -> SubscriptionData: ...


class FilterIndex(ABC):
    """What a broker keeps of the filters of groups that do not select by tags: registered with heartbeats,
    kept over restarts, and computed ahead for new messages (Java: ConsumerFilterManager).

    `filters_retries`: whether messages of retry topics are filtered again, by the filter for the topic that
    they come from.
    """

    filters_retries: bool = False

    @property
    @abstractmethod
    def bit_maps_setting(self) -> str:
        """The setting that asks for bit maps of new messages, empty when none does. Bit maps are stored in
        the extensions of a store's queues."""

    @property
    @abstractmethod
    def persist_interval_ms(self) -> int:
        """Time between two calls of `persist`."""

    @abstractmethod
    def configure(self, config: Config) -> None:
        """Use changed settings."""

    @abstractmethod
    def load(self) -> None:
        """Called once, before all others. Raises ConfigError when what was kept is damaged."""

    @abstractmethod
    async def persist(self) -> None:
        """Keep what has changed. Raises OSError, and writes again next time."""

    @abstractmethod
    def get(self, topic: str, group: str) -> GroupFilter | None:
        """The filter of a group, None when it has none that parses."""

    @abstractmethod
    def subscribe(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take over all subscriptions of a heartbeat of a group."""

    @abstractmethod
    def leave(self, group: str) -> None:
        """The last member of a group has gone; a pull of it may still come."""

    @abstractmethod
    def forget_group(self, group: str) -> None:
        """A group was deleted."""

    @abstractmethod
    def unit(self, subscription: SubscriptionData, group: str) -> UnitFilter | None:
        """The first stage of the group's filter, where queues have extensions: by the bit maps."""

    @abstractmethod
    def bit_maps(self, topic: str) -> RecordsBitMaps | None:
        """Log.bit_maps."""


#: Settings, clock, and a function that compiles -> the index of one broker. Does no I/O.
FilterIndexFactory = Callable[[Config, Clock, Compile], FilterIndex]
