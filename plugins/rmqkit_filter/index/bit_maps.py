"""Bit maps of messages: which groups' filters match, computed once when a message is stored (behaviour sheet,
E5; Java: CommitLogDispatcherCalcBitMap, ExpressionMessageFilter).

A bit map is a bloom filter of the groups: a pull passes over a message that lacks one of its group's bits,
and evaluates the expression for the others. Where a filter cannot be evaluated now, its bits are set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from rmqkit.config import Config
from rmqkit.limits import MAX_FILTER_CALL_MS
from rmqkit.model.buffer import Buffer
from rmqkit.model.names import RETRY_PREFIX
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.store import ExtensionFilter, RecordsBitMaps, UnitExtension
from rmqkit.toolkit.held_time import HeldTime
from rmqkit_filter.index.table import FilterData, FilterTable
from rmqkit_filter.limits import MAX_BIT_MAP_FILTERS
from rmqkit_filter.settings import ExpressionSettings

_log = logging.getLogger(__name__)


class BitMapFilter(ExtensionFilter):
    """The first stage of a group's filter for a topic. It says nothing about messages that were stored before
    the filter was registered, or whose bit map has another length."""

    def __init__(self, table: FilterTable, subscription: SubscriptionData, group: str) -> None:
        self._table = table
        self._place = subscription.topic, group
        self._filter = subscription.expression_type, subscription.sub_string
        self._known: FilterData | None = None
        self._mask = 0

    def __call__(self, tags_code: int) -> bool:
        return True

    def extended(self, extension: UnitExtension) -> bool:
        data = self._table.get(*self._place)
        if data is None:
            return True
        if data is not self._known:
            self._known = data
            is_own = (data.expression_type, data.expression) == self._filter
            self._mask = data.mask if is_own else 0
        return (
            extension.store_time_ms <= data.born_time
            or len(extension.bit_map) != self._table.bit_map_bytes
            or not self._mask & ~int.from_bytes(extension.bit_map, "little")
        )


class BitMaps:
    """Makes the bit maps of new messages.

    The filters of a run hold the event loop for MAX_FILTER_CALL_MS; the bits of filters that are left then
    are set. So are those of filters that need a task, and of filters that differ from the ones in the file of
    the table: a broker that starts again after a crash may know an older filter of the group.
    """

    def __init__(
        self, config: Config, table: FilterTable, compiled: Callable[[SubscriptionData, str], CompiledFilter]
    ) -> None:
        self._is_on = config.owned(ExpressionSettings).enable_calc_filter_bit_map
        self._table = table
        self._compiled = compiled

    def configure(self, config: Config) -> None:
        """Use changed settings."""
        self._is_on = config.owned(ExpressionSettings).enable_calc_filter_bit_map

    def of_topic(self, topic: str) -> RecordsBitMaps | None:
        """Log.bit_maps."""
        if not self._is_on or topic.startswith(RETRY_PREFIX):
            return None
        groups = self._table.of_topic(topic)
        if not groups:
            return None
        self._table.bit_maps_made()
        return partial(self._bit_maps, list(groups.values()), self._table.unsaved_mask(topic))

    def _bit_maps(self, filters: Sequence[FilterData], mask: int, records: Sequence[Buffer]) -> list[bytes]:
        for data in filters[MAX_BIT_MAP_FILTERS:]:
            mask |= data.mask
        masks = [mask] * len(records)
        held = HeldTime()
        for data in filters[:MAX_BIT_MAP_FILTERS]:
            if data.mask & ~mask:
                self._add(data, records, masks, held)
        size = self._table.bit_map_bytes
        return [each.to_bytes(size, "little") for each in masks]

    def _add(self, data: FilterData, records: Sequence[Buffer], masks: list[int], held: HeldTime) -> None:
        """Add the bits of a group to the masks of the records that match."""
        done = 0
        try:
            compiled = self._compiled(data.subscription, data.consumer_group)
            count = compiled.records_per_call
            while done < len(records) and compiled.records is not None:
                if held.elapsed_s() * 1000 > MAX_FILTER_CALL_MS:
                    break
                verdicts = compiled.records(records[done : done + count])
                for number, matches in enumerate(verdicts, done):
                    if matches:
                        masks[number] |= data.mask
                done += len(verdicts)
        except Exception:  # noqa: BLE001 - the message is stored whatever a filter does
            _log.exception("filter of group %s for topic %s failed", data.consumer_group, data.topic)
        for number in range(done, len(records)):
            masks[number] |= data.mask
