"""The cache of compiled filters: what tells two of them apart, and how much it keeps."""

from __future__ import annotations

import pytest

from rmqkit.broker.pulling import filter_cache
from rmqkit.broker.pulling.filter_cache import FilterCache, filter_key
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter


def key(expression: str, topic: str = "T") -> tuple[object, ...]:
    return filter_key("TAG", topic, "G", expression, None)


def test_a_filter_belongs_to_its_topic_and_expression() -> None:
    """A filter server may look at the topic: another topic's filter is never given."""
    cache, compiled = FilterCache(), CompiledFilter()
    cache.put(key("A"), compiled)
    assert cache.get(key("A")) is compiled
    assert cache.get(key("A", "U")) is None
    assert cache.get(key("B")) is None


def test_a_heartbeat_with_codes_of_its_own_has_its_own_filter() -> None:
    """The codes of one client's heartbeat do not serve a client that sends the same text with others."""
    mine = SubscriptionData(topic="T", sub_string="A", code_set=[65])
    other = SubscriptionData(topic="T", sub_string="A", code_set=[66])
    assert filter_key("TAG", "T", "G", "A", mine) != filter_key("TAG", "T", "G", "A", other)


def test_the_filter_used_least_recently_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that polls keeps its filter, whatever else comes by."""
    monkeypatch.setattr(filter_cache, "MAX_CACHED_FILTERS", 2)
    cache = FilterCache()
    cache.put(key("busy"), CompiledFilter())
    for number in range(10):
        cache.put(key(f"{number}"), CompiledFilter())
        assert cache.get(key("busy")) is not None
    assert (len(cache), cache.evicted) == (2, 9)


def test_the_cache_is_limited_in_bytes() -> None:
    """Long expressions push each other out, and one that is very long is not kept at all."""
    cache = FilterCache()
    for number in range(400):
        cache.put(key(f"{number}" + "x" * 100_000), CompiledFilter())
    assert 10 < len(cache) < 100
    cache.put(key("y" * 900_000), CompiledFilter())
    assert cache.get(key("y" * 900_000)) is None
