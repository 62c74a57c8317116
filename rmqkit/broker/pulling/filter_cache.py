"""A cache of compiled filters, so that a pull does not parse its subscription again."""

from __future__ import annotations

from rmqkit.limits import MAX_CACHED_FILTER_BYTES, MAX_CACHED_FILTERS
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter

#: Memory of an entry besides its texts, and how often it contains them: in the key, the tags and the compiled
#: form.
_ENTRY_BYTES = 512
_COPIES = 3

#: Expression type, topic, group, expression, and the codes and tags of a heartbeat's subscription.
FilterKey = tuple[object, ...]


def filter_key(
    kind: str, topic: str, group: str, expression: str, subscription: SubscriptionData | None
) -> FilterKey:
    """The key of a filter. A heartbeat's subscription has its own codes, which may differ from those of its
    text, so clients with different codes must not share a filter."""
    own = (
        (tuple(subscription.code_set), tuple(subscription.tags_set), subscription.class_filter_mode)
        if subscription
        else ()
    )
    return (kind, topic, group, expression, *own)


class FilterCache:
    """Limited in number and in bytes; the least recently used filter is removed first and counted in
    `evicted`."""

    def __init__(self) -> None:
        self._filters: dict[FilterKey, tuple[CompiledFilter, int]] = {}
        self._bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._filters)

    def get(self, key: FilterKey) -> CompiledFilter | None:
        found = self._filters.pop(key, None)
        if found is None:
            return None
        self._filters[key] = found
        return found[0]

    def put(self, key: FilterKey, compiled: CompiledFilter) -> None:
        """Keep a filter, unless it would take a large part of the cache."""
        size = _ENTRY_BYTES + _COPIES * sum(map(_size, key))
        if size > MAX_CACHED_FILTER_BYTES // 16:
            return
        self._filters[key] = compiled, size
        self._bytes += size
        while len(self._filters) > MAX_CACHED_FILTERS or self._bytes > MAX_CACHED_FILTER_BYTES:
            oldest = next(iter(self._filters))
            self._bytes -= self._filters.pop(oldest)[1]
            self.evicted += 1


def _size(part: object) -> int:
    if isinstance(part, str):
        return len(part)
    return sum(map(_size, part)) + 8 * len(part) if isinstance(part, tuple) else 0
