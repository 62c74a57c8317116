"""Filter servers: how subscriptions select messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import frozen

from rmqkit.model.subscription import SubscriptionData

if TYPE_CHECKING:
    pass

from rmqkit.plugin.store import RecordFilter, UnitFilter


@frozen
class CompiledFilter:
    """A filter in the two stages that a store applies."""

    unit: UnitFilter | None = None
    record: RecordFilter | None = None


class FilterServer(ABC):
    """Turns a subscription of one expression type into a filter (Java: MessageFilter, FilterFactory)."""

    expression_type: str

    @abstractmethod
    def compile(self, subscription: SubscriptionData) -> CompiledFilter:
        """Raises ValueError with the reason when the expression does not parse."""

    @abstractmethod
    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        """A pull request's expression text as a subscription. Raises ValueError like `compile`."""
