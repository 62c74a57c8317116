"""Filter servers: how subscriptions select messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence

from attrs import define, field

from rmqkit.limits import FIRST_FILTERED_RECORDS
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.store import UnitFilter

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

    def disabled(self) -> Mapping[str, str]:
        """Filters that were disabled because they failed, by name, with the reason; for metrics and
        `rmqkit doctor`."""
        return {}

    @abstractmethod
    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        """A pull request's expression text as a subscription. Raises ValueError like `compile`."""
