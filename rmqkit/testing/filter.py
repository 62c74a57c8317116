"""Contracts of FilterServer, for any expression type, and of FilterIndex.

def test_contract() -> None:
    check_filter_server(MyFilter(), good=["a > 1"], bad=["a >"])

async def test_index(tmp_path: Path) -> None:
    await check_filter_index(MyIndex, tmp_path)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from rmqkit.config import load
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterIndex, FilterIndexFactory, FilterServer
from rmqkit.testing.clock import FakeClock

_TOPIC = "Topic"
_GROUP = "group"
_VERSION = 7
#: Tags codes as in a consume queue: signed 64-bit numbers, possibly written by an old or foreign store.
_TAGS_CODES = (0, 1, -1, 2_598, 0x7FFFFFFF, -0x80000000, 0x80000000, 0x7FFFFFFFFFFFFFFF, -0x8000000000000000)


def check_filter_server(server: FilterServer, *, good: Iterable[str], bad: Iterable[str]) -> None:
    """Check valid (`good`) and invalid (`bad`) expressions. Raises AssertionError at the first broken
    rule."""
    assert server.expression_type, "a filter has an expression type"
    for expression in good:
        _check_good(server, expression)
    for expression in bad:
        _check_refused(server, expression)


def _check_good(server: FilterServer, expression: str) -> None:
    """A pull's expression becomes a subscription with the same topic, version and text, which survives JSON
    and compiles to the same filter."""
    subscription = server.subscription(_TOPIC, expression, _VERSION)
    assert subscription.topic == _TOPIC, "the subscription is for another topic"
    assert subscription.sub_version == _VERSION, "the subscription has another version"
    assert subscription.sub_string.strip() == expression.strip() or subscription.takes_all, (
        "the subscription has another text"
    )
    assert subscription.expression_type == server.expression_type, (
        "the subscription is of another expression type"
    )
    copy = msgspec.json.decode(msgspec.json.encode(subscription), type=SubscriptionData)
    first, second = server.compile(subscription, _GROUP), server.compile(copy, _GROUP)
    assert copy == subscription, "compile changes the subscription"
    assert _verdicts(first) == _verdicts(second), "equal subscriptions compile to different filters"


def _verdicts(compiled: CompiledFilter) -> list[bool]:
    """Results of the unit stage for some tags codes. It must accept any signed 64-bit number and return a
    bool."""
    if compiled.unit is None:
        return []
    verdicts = [compiled.unit(code) for code in _TAGS_CODES]
    assert all(type(verdict) is bool for verdict in verdicts), (
        "a unit filter answers with something else than a bool"
    )
    return verdicts


def _check_refused(server: FilterServer, expression: str) -> None:
    """A bad expression raises ValueError with a reason, in a pull as in a heartbeat."""
    heartbeat = SubscriptionData(topic=_TOPIC, sub_string=expression, expression_type=server.expression_type)
    for attempt in (
        lambda: server.subscription(_TOPIC, expression, _VERSION),
        lambda: server.compile(heartbeat, _GROUP),
    ):
        try:
            result = attempt()
        except ValueError as error:
            if not str(error):
                raise AssertionError(f"{expression!r} is refused without a reason") from error
            continue
        raise AssertionError(f"{expression!r} should be refused, but gives {result}")


async def check_filter_index(factory: FilterIndexFactory, directory: Path) -> None:
    """Check the filters of a group from its first heartbeat to its deletion, over a restart. Raises
    AssertionError at the first broken rule."""
    config = load(environ={}, flags={"storePathRootDir": str(directory)})
    clock = FakeClock()

    def started() -> FilterIndex:
        index = factory(config, clock, _compiled)
        index.load()
        return index

    index = started()
    assert index.persist_interval_ms > 0, "the index is never kept"
    assert index.get(_TOPIC, _GROUP) is None, "a group without a heartbeat has a filter"
    index.subscribe(_GROUP, [_subscribed("first", 1), SubscriptionData(topic="Tags", sub_string="a")])
    assert _kept(index) == ("first", 1)
    assert index.get("Tags", _GROUP) is None, "tags are kept as an expression"
    index.subscribe(_GROUP, [_subscribed("second", 2)])
    index.subscribe(_GROUP, [_subscribed("first", 1)])
    assert _kept(index) == ("second", 2), "an older heartbeat replaces a newer one"
    index.leave(_GROUP)
    assert _kept(index) == ("second", 2), "the filter goes with the last member"
    await index.persist()
    index = started()
    assert _kept(index) == ("second", 2), "a restart loses filters"
    index.subscribe(_GROUP, [_subscribed("bad", 3)])
    assert index.get(_TOPIC, _GROUP) is None, "an expression that does not parse is kept"
    index.subscribe(_GROUP, [_subscribed("third", 4)])
    index.configure(config)
    assert _kept(index) == ("third", 4)
    index.forget_group(_GROUP)
    assert index.get(_TOPIC, _GROUP) is None, "a deleted group has a filter"
    index.forget_group(_GROUP)
    await index.persist()
    assert started().get(_TOPIC, _GROUP) is None, "a restart brings a deleted group's filter back"


def _subscribed(expression: str, version: int) -> SubscriptionData:
    return SubscriptionData(topic=_TOPIC, sub_string=expression, expression_type="SQL92", sub_version=version)


def _kept(index: FilterIndex) -> tuple[str, int]:
    found = index.get(_TOPIC, _GROUP)
    assert found is not None, "the filter of a group is not kept"
    return found.subscription.sub_string, found.client_version


def _compiled(subscription: SubscriptionData, group: str) -> CompiledFilter:
    if subscription.sub_string == "bad":
        raise ValueError("it does not parse")
    return CompiledFilter(records=lambda records: [True] * len(records))
