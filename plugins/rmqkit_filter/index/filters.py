"""The filters of groups as the broker uses them (Java: ConsumerFilterManager, ExpressionMessageFilter)."""

from __future__ import annotations

from collections.abc import Iterable

from rmqkit.config import Config
from rmqkit.model.names import RETRY_PREFIX
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.filter import Compile, FilterIndex
from rmqkit.plugin.store import RecordsBitMaps, UnitFilter
from rmqkit_filter.index.bit_maps import BitMapFilter, BitMaps
from rmqkit_filter.index.table import FilterData, FilterTable
from rmqkit_filter.settings import ExpressionSettings

#: Time between two writes of the table.
_PERSIST_MS = 10_000


class GroupFilters(FilterIndex):
    """`table` has the filters by topic and group."""

    def __init__(self, config: Config, clock: Clock, compiled: Compile) -> None:
        self._settings = config.owned(ExpressionSettings)
        self.filters_retries = self._settings.filter_support_retry
        self.table = FilterTable(config, clock, config.config_path, compiled)
        self._bit_maps = BitMaps(config, self.table, compiled)

    def configure(self, config: Config) -> None:
        self._settings = config.owned(ExpressionSettings)
        self.table.configure(config)
        self._bit_maps.configure(config)

    @property
    def bit_maps_setting(self) -> str:
        return "enableCalcFilterBitMap" if self._settings.enable_calc_filter_bit_map else ""

    @property
    def persist_interval_ms(self) -> int:
        return max(1_000, min(_PERSIST_MS, self._settings.filter_data_clean_time_span))

    def load(self) -> None:
        self.table.load()

    async def persist(self) -> None:
        await self.table.persist()

    def get(self, topic: str, group: str) -> FilterData | None:
        return self.table.get(topic, group)

    def subscribe(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        self.table.subscribe(group, subscriptions)

    def leave(self, group: str) -> None:
        self.table.leave(group)

    def forget_group(self, group: str) -> None:
        self.table.forget_group(group)

    def unit(self, subscription: SubscriptionData, group: str) -> UnitFilter | None:
        if subscription.topic.startswith(RETRY_PREFIX):
            return None
        return BitMapFilter(self.table, subscription, group)

    def bit_maps(self, topic: str) -> RecordsBitMaps | None:
        return self._bit_maps.of_topic(topic)
