"""Contract of FilterServer, for any expression type.

def test_contract() -> None:
    check_filter_server(MyFilter(), good=["a > 1"], bad=["a >"])
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterServer

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
