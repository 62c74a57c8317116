"""Queues from route data, and the two ways of choosing one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.client.producing.queue_choice import RoundRobin, by_key
from rmqkit.client.routing.routes import build_route, derive
from rmqkit.errors import ClientError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import BrokerData, QueueData, TopicRouteData


def data(
    *queues: tuple[str, int, int, int], masters: str = "abc", order: str | None = None
) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={0 if name in masters else 1: f"{name}:1"})
            for name, *_ in queues
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)
            for name, read, write, perm in queues
        ],
        order_topic_conf=order,
    )


def test_which_queues_count() -> None:
    """Writing needs permission and a master, reading only permission; queues are sorted by broker name
    (behaviour sheet, A5)."""
    route = build_route("T", data(("b", 2, 1, 6), ("a", 1, 2, 6), ("c", 1, 1, 4), ("d", 1, 1, 6)))
    assert [str(queue) for queue in route.write_queues] == ["T@a:0", "T@a:1", "T@b:0"]
    assert [str(queue) for queue in route.read_queues] == ["T@a:0", "T@b:0", "T@b:1", "T@c:0", "T@d:0"]


@pytest.mark.row("S132")
def test_the_queues_of_a_topic_are_those_of_all_brokers() -> None:
    """Brokers with 2, 3 and 1 queues give six, numbered from 0 on each broker."""
    route = build_route("T", data(("a", 2, 2, 6), ("b", 3, 3, 6), ("c", 1, 1, 6)))
    assert [str(queue) for queue in route.write_queues] == [
        "T@a:0",
        "T@a:1",
        "T@b:0",
        "T@b:1",
        "T@b:2",
        "T@c:0",
    ]
    assert route.read_queues == route.write_queues


@pytest.mark.row("S131")
def test_a_broker_without_its_master_gets_no_messages() -> None:
    """Slaves are used for reads, never for writes."""
    route = build_route("T", data(("a", 2, 2, 6), ("b", 1, 1, 6), masters="b"))
    assert [str(queue) for queue in route.write_queues] == ["T@b:0"]
    assert [str(queue) for queue in route.read_queues] == ["T@a:0", "T@a:1", "T@b:0"]


def test_derived_routes_are_small() -> None:
    """A derived route has min(4, the template's read queues) queues for reading and writing."""
    route = derive("T", data(("a", 8, 8, 7), ("b", 2, 8, 7)), 4)
    assert [len([queue for queue in route.write_queues if queue.broker_name == name]) for name in "ab"] == [
        4,
        2,
    ]
    assert route.derived


@pytest.mark.parametrize("order", ["a", "a:x", ":1", "a:1;b"])
def test_a_bad_order_configuration_is_named(order: str) -> None:
    """A wrong order configuration raises an error, because ignoring it would send messages to other
    queues."""
    with pytest.raises(ClientError, match="order configuration"):
        build_route("T", data(("a", 1, 1, 6), order=order))


@pytest.mark.row("S133", "S134")
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4)),
        min_size=1,
        max_size=3,
        unique_by=lambda item: item[0],
    ),
    st.integers(1, 30),
)
def test_round_robin_is_fair_and_avoids(brokers: list[tuple[str, int]], rounds: int) -> None:
    """In n rounds every queue gets n turns; a broker to avoid is never chosen while there is another."""
    queues = [MessageQueue("T", name, number) for name, count in brokers for number in range(count)]
    turns = RoundRobin()
    chosen = [turns.choose("T", queues) for _ in range(rounds * len(queues))]
    assert all(chosen.count(queue) == rounds for queue in queues)
    avoid = brokers[0][0]
    for _ in range(rounds):
        assert (turns.choose("T", queues, {avoid}).broker_name != avoid) == (len(brokers) > 1)


@pytest.mark.row("S133")
def test_each_topic_has_a_turn_of_its_own_that_goes_round() -> None:
    """The next queue is the successor of the last, modulo their number; the start is random."""
    queues = [MessageQueue("T", "a", number) for number in range(6)]
    begun = set()
    for _ in range(200):
        turns = RoundRobin()
        ids = []
        for _ in range(13):
            ids.append(turns.choose("T", queues).queue_id)
            turns.choose("Other", queues)
        assert ids == [(ids[0] + number) % 6 for number in range(13)]
        begun.add(ids[0])
    assert begun == set(range(6))


@given(st.text(min_size=1))
def test_keys_have_one_queue(key: str) -> None:
    """The queue of a key is stable for any characters."""
    queues = [MessageQueue("T", "a", number) for number in range(7)]
    assert by_key(queues, key) is by_key(queues, key)
