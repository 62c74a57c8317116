"""Subscriptions to lite topics, beside a plain table."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rmqkit_pop.lite.subscriptions import Subscriptions

NAMES = st.sampled_from(["q1", "q2", "q3", "q4"])
CLIENTS = st.sampled_from([("g1", "a"), ("g1", "b"), ("g2", "a")])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "replace", "remove", "forget", "all"]),
        CLIENTS,
        st.lists(NAMES, unique=True, max_size=4),
    ),
    max_size=30,
)


@given(STEPS)
def test_who_has_subscribed_what(steps: Sequence[tuple[str, tuple[str, str], list[str]]]) -> None:
    """After any changes the subscribers of each queue, their number and what is to be looked at are those of
    the plain table."""
    table = Subscriptions()
    plain: dict[tuple[str, str], set[str]] = {}
    everything: set[tuple[str, str]] = set()
    for kind, key, names in steps:
        client = table.said(*key, "T", 0)
        own = plain.setdefault(key, set())
        if kind == "add":
            table.add(client, names)
            own |= set(names)
            assert set(names) <= client.ready.keys()
        elif kind == "replace":
            table.replace(client, names)
            plain[key] = set(names)
        elif kind == "remove":
            table.remove(client, names)
            own -= set(names)
        elif kind == "all":
            table.add_all(client, names)
            everything.add(key)
        else:
            table.forget(client)
            del plain[key]
            everything.discard(key)
    assert {key: set(each.queues) for key, each in table.clients.items()} == plain
    assert table.count == sum(map(len, plain.values()))
    for name in ("q1", "q2", "q3", "q4"):
        expected = {key for key, own in plain.items() if name in own} | everything
        assert {each.key for each in table.subscribers("T", name)} == expected
        assert {each.key for each in table.subscribers("T", name, "g1")} == {
            key for key in expected if key[0] == "g1"
        }
        assert not {each.key for each in table.subscribers("Other", name)} & (everything - plain.keys())
    for key, client in table.clients.items():
        if key not in everything:
            assert client.ready.keys() <= plain[key]


def test_a_client_that_goes_to_another_topic_begins_anew() -> None:
    """What it had is no longer its."""
    table = Subscriptions()
    first = table.said("g", "c", "T", 1)
    table.add(first, ["q1"])
    second = table.said("g", "c", "U", 2)
    assert second is not first
    assert list(table.subscribers("T", "q1")) == []
    assert table.topics() == {"U": {"g"}}


def test_clients_that_say_nothing_expire() -> None:
    """Those that have said something at the time or later stay."""
    table = Subscriptions()
    for number in range(3):
        table.said("g", f"c{number}", "T", number)
    assert [each.client_id for each in table.expired(2)] == ["c0", "c1"]
