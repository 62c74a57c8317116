"""The filters of groups, and `config/consumerFilter.json` (Java: ConsumerFilterManager; behaviour
sheet, E5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path

import msgspec
import trio

from rmqkit.config import Config
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.clock import Clock
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_filter.index.bloom import BloomFilter, mask_of
from rmqkit_filter.limits import MAX_FILTER_DATA
from rmqkit_filter.settings import ExpressionSettings

_log = logging.getLogger(__name__)
#: A group that was online when the broker stopped counts as offline since this time before the start.
_DEAD_BEFORE_MS = 30_000
#: Stands for the topics of changes when too many topics have some.
_ANY_TOPIC = ""


class BloomData(msgspec.Struct, kw_only=True, rename="camel"):
    """The bits of a group and a topic (Java: BloomFilterData)."""

    bit_pos: list[int] | None = None
    bit_num: int = 0


class FilterData(msgspec.Struct, kw_only=True, rename="camel"):
    """The filter of a group for a topic (Java: ConsumerFilterData). `dead_time` is when the group went
    offline, 0 while it is online."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomData | None = None

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time

    @property
    def mask(self) -> int:
        """Its bits in a bit map, as a little-endian number."""
        bloom = self.bloom_filter_data
        return 0 if bloom is None else mask_of(bloom.bit_pos or ())

    @property
    def subscription(self) -> SubscriptionData:
        return SubscriptionData(
            topic=self.topic, sub_string=self.expression, expression_type=self.expression_type
        )


class _OfTopic(msgspec.Struct, kw_only=True, rename="camel"):
    group_filter_data: dict[str, FilterData] = {}
    topic: str = ""


class _File(msgspec.Struct, kw_only=True, rename="camel"):
    filter_data_by_topic: dict[str, _OfTopic] = {}


class FilterTable:
    """The filters of subscriptions whose expression type is not TAG, by topic and group. Kept in memory; its
    owner writes it every few seconds and at the stop.

    `compiles` checks a subscription of a group; it raises ValueError when the expression does not parse.
    `bit_map_bytes` is the length of a bit map.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        directory: Path,
        compiles: Callable[[SubscriptionData, str], object],
    ) -> None:
        self._settings = config.owned(ExpressionSettings)
        self._clock = clock
        self._compiles = compiles
        self._file = JsonFile(directory / "consumerFilter.json", _File)
        self._bloom = BloomFilter(
            self._settings.max_error_rate_of_bloom_filter, self._settings.expect_consumer_num_use_filter
        )
        self.bit_map_bytes = self._bloom.bits // 8
        self._topics: dict[str, dict[str, FilterData]] = {}
        #: Topic -> bits of the groups whose filters in the file are others, by changes since the file was
        #: written, and by those that are being written.
        self._unsaved: dict[str, int] = {}
        self._being_saved: dict[str, int] = {}
        #: When the last bit maps were made; no later filter is older, also when the clock is set back.
        self._bit_maps_ms = 0
        self._of_group: dict[str, set[str]] = {}
        self._count = 0
        self._dirty = False
        self._writing = trio.Lock()

    def __len__(self) -> int:
        return self._count

    def configure(self, config: Config) -> None:
        """Use changed settings; those of the bloom filter are fixed."""
        self._settings = config.owned(ExpressionSettings)

    def load(self) -> None:
        """All groups count as offline. If the settings of the bloom filter have changed, the file is ignored,
        as by Apache's brokers. Raises ConfigError when the file and its `.bak` are damaged."""
        found = self._file.load() or _File()
        of_topics = found.filter_data_by_topic.values()
        stored = [data for each in of_topics for data in each.group_filter_data.values()]
        if not all(map(self._is_valid, stored)):
            _log.info("%s was written with other settings of the bloom filter: ignored", self._file.path)
            return
        for data in stored:
            if data.dead_time == 0:
                data.dead_time = max(data.born_time, self._clock.now_ms() - _DEAD_BEFORE_MS)
            self._put(data)

    def get(self, topic: str, group: str) -> FilterData | None:
        return self._topics.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> Mapping[str, FilterData]:
        """Group -> filter, also of groups that are offline."""
        return self._topics.get(topic, {})

    def unsaved_mask(self, topic: str) -> int:
        """The bits of the groups whose filters for a topic are not as in the file."""
        changes = self._unsaved, self._being_saved
        return reduce(or_, (change.get(key, 0) for change in changes for key in (topic, _ANY_TOPIC)))

    def bit_maps_made(self) -> None:
        """Called when messages get bit maps, by the filters that there are now."""
        self._bit_maps_ms = max(self._bit_maps_ms, self._clock.now_ms())

    def subscribe(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take over a heartbeat's subscriptions. An older version is ignored, a text that does not parse
        removes the filter: pulls report the fault."""
        kept = set()
        for subscription in subscriptions:
            kept.add(subscription.topic)
            if not subscription.is_tag and subscription.sub_string:
                self._register(group, subscription)
        for topic in self._of_group.get(group, set()) - kept:
            self._end(self._topics[topic][group])

    def leave(self, group: str) -> None:
        """A group has no members any more; its filters are kept for a while."""
        for topic in self._of_group.get(group, ()):
            self._end(self._topics[topic][group])

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        known = self.get(subscription.topic, group)
        kind, expression = subscription.expression_type or "", subscription.sub_string
        if known is not None and subscription.sub_version <= known.client_version:
            if subscription.sub_version == known.client_version:
                self._revive(known)
            return
        bloom = self._bloom_data(group, subscription.topic)
        if known is not None and (kind, expression, bloom) == (
            known.expression_type,
            known.expression,
            known.bloom_filter_data,
        ):
            known.client_version = subscription.sub_version
            self._dirty = True
            self._revive(known)
            return
        try:
            self._compiles(subscription, group)
        except ValueError as error:
            _log.warning(
                "filter of group %s for topic %s is refused: %s", group, subscription.topic, str(error)[:512]
            )
            if known is not None:
                self._remove(known)
            return
        self._put(
            FilterData(
                consumer_group=group,
                topic=subscription.topic,
                expression=expression,
                expression_type=kind,
                born_time=max(self._clock.now_ms(), self._bit_maps_ms),
                client_version=subscription.sub_version,
                bloom_filter_data=bloom,
            )
        )
        self._note_change(self._topics[subscription.topic][group])
        self._make_room()

    def forget_group(self, group: str) -> None:
        """The group was deleted; its filters come again with the next heartbeat of a member."""
        for topic in list(self._of_group.get(group, ())):
            self._remove(self._topics[topic][group])

    def _note_change(self, data: FilterData) -> None:
        is_known = data.topic in self._unsaved or len(self._unsaved) < MAX_FILTER_DATA
        topic = data.topic if is_known else _ANY_TOPIC
        self._unsaved[topic] = self._unsaved.get(topic, 0) | data.mask
        self._dirty = True

    def _put(self, data: FilterData) -> None:
        groups = self._topics.setdefault(data.topic, {})
        self._count += data.consumer_group not in groups
        groups[data.consumer_group] = data
        self._of_group.setdefault(data.consumer_group, set()).add(data.topic)
        self._dirty = True

    def _remove(self, data: FilterData) -> None:
        groups, topics = self._topics[data.topic], self._of_group[data.consumer_group]
        del groups[data.consumer_group]
        topics.discard(data.topic)
        if not groups:
            del self._topics[data.topic]
        if not topics:
            del self._of_group[data.consumer_group]
        self._count -= 1
        self._note_change(data)

    def _end(self, data: FilterData) -> None:
        if not data.is_dead:
            data.dead_time = max(self._clock.now_ms(), data.born_time)
            self._dirty = True

    def _revive(self, data: FilterData) -> None:
        if data.is_dead:
            data.dead_time = 0
            self._dirty = True

    def _make_room(self) -> None:
        """Remove the filter of the group that has been offline longest, if there are too many."""
        if self._count > MAX_FILTER_DATA:
            dead = [data for data in self._all() if data.is_dead]
            if dead:
                self._remove(min(dead, key=lambda data: data.dead_time))

    def _all(self) -> Iterator[FilterData]:
        for groups in self._topics.values():
            yield from groups.values()

    def _is_valid(self, data: FilterData) -> bool:
        bloom = data.bloom_filter_data
        return (
            bloom is not None
            and bloom.bit_num == self._bloom.bits
            and len(bloom.bit_pos or ()) == self._bloom.hashes
            and all(0 <= position < bloom.bit_num for position in bloom.bit_pos or ())
        )

    def _bloom_data(self, group: str, topic: str) -> BloomData:
        return BloomData(bit_pos=self._bloom.positions(f"{group}#{topic}"), bit_num=self._bloom.bits)

    async def persist(self) -> None:
        """Forget groups that have been offline for filterDataCleanTimeSpan, and write the table if it
        changed. Raises OSError, and writes again next time."""
        async with self._writing:
            oldest_ms = self._clock.now_ms() - self._settings.filter_data_clean_time_span
            for data in [data for data in self._all() if data.is_dead and data.dead_time <= oldest_ms]:
                self._remove(data)
            if not self._dirty:
                return
            self._dirty = False
            self._being_saved, self._unsaved = self._unsaved, {}
            table = _File(
                filter_data_by_topic={
                    topic: _OfTopic(group_filter_data=groups, topic=topic)
                    for topic, groups in self._topics.items()
                }
            )
            encoded = self._file.encode(table)
            try:
                await trio.to_thread.run_sync(self._file.write, [encoded])
            except BaseException:
                self._dirty = True
                for topic, mask in self._being_saved.items():
                    self._unsaved[topic] = self._unsaved.get(topic, 0) | mask
                raise
            self._being_saved = {}
