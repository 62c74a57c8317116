"""The name server's tables."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import RequestRefused
from rmqkit.model.route import QueueData
from rmqkit.model.sysflag import PERM_READ, PERM_RW
from rmqkit.model.topic import DataVersion, TopicConfig
from rmqkit_namesrv import tables as tables_module
from rmqkit_namesrv.entries import BrokerKey, Registration
from rmqkit_namesrv.tables import UNIT, UNIT_SUB, RouteTables

A, B, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def topic(name: str, queues: int = 4, perm: int = PERM_RW, sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag
    )


def queues_of(*topics: TopicConfig, broker_name: str = "broker-a") -> dict[str, QueueData]:
    return {
        topic.topic_name: QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
        )
        for topic in topics
    }


def registration(
    *topics: TopicConfig, counter: int = 1, state_version: int = 0, **changes: Any
) -> Registration:
    plain = Registration(
        cluster="c",
        broker_name="broker-a",
        broker_id=0,
        address=A,
        topics=queues_of(*(topics or (topic("T"), topic("U")))),
        data_version=DataVersion(counter=counter, timestamp=1, state_version=state_version),
    )
    changed = attrs.evolve(plain, **changes)
    queues = {
        name: msgspec.structs.replace(queue, broker_name=changed.broker_name)
        for name, queue in changed.topics.items()
    }
    return attrs.evolve(changed, topics=queues)


def check_invariants(tables: RouteTables) -> None:
    listed = {name for names in tables.clusters.values() for name in names}
    assert listed == set(tables.brokers)
    assert sum(map(len, tables.clusters.values())) == len(listed)
    assert all(tables.clusters.values())
    assert all(tables.topics.values())
    for queues in tables.topics.values():
        assert set(queues) <= set(tables.brokers)
        assert all(queue.broker_name == name for name, queue in queues.items())
    for name, broker in tables.brokers.items():
        assert broker.broker_name == name
        assert broker.broker_addrs
        for address in broker.broker_addrs.values():
            assert tables.live[BrokerKey(broker.cluster, address)].broker_name == name
    for cluster in tables.clusters:
        expected = {
            topic for topic, queues in tables.topics.items() if set(queues) & tables.clusters[cluster]
        }
        assert set(tables.topics_of_cluster(cluster)) == expected
    assert set(tables.filter_servers) <= set(tables.live)
    assert tables._route_entries == sum(map(len, tables.topics.values()))
    over = {key: connection for connection, keys in tables._registered_over.items() for key in keys}
    assert over == {
        key: entry.connection for key, entry in tables.live.items() if entry.connection is not None
    }
    assert all(tables._registered_over.values())


@pytest.mark.row("S299", "S300", "S301", "S302", "S327")
def test_one_registration_fills_every_table() -> None:
    """A registration writes broker name -> addresses by id, topic -> queues by broker, cluster -> names, and
    (cluster, address) -> live broker."""
    tables, connection = RouteTables(), object()
    tables.register(registration(topic("T"), connection=connection, ha_address="10.0.0.1:10912"), 5)
    assert tables.brokers["broker-a"].broker_addrs == {0: A}
    assert tables.brokers["broker-a"].cluster == "c"
    assert tables.topics["T"]["broker-a"] == QueueData(
        broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6
    )
    assert tables.clusters == {"c": {"broker-a"}}
    entry = tables.live[BrokerKey("c", A)]
    assert (entry.last_update_ms, entry.ha_address, entry.data_version.counter) == (5, "10.0.0.1:10912", 1)
    assert entry.connection is connection


@pytest.mark.row("S298")
def test_two_brokers_share_a_topic() -> None:
    """A route lists every broker with the topic; a leaving broker removes only its own queues."""
    tables = RouteTables()
    tables.register(registration(topic("T"), topic("OnlyA")), 0)
    tables.register(registration(topic("T", 8), broker_name="broker-b", address=B), 0)
    route = tables.route("T")
    assert route is not None
    assert {queue.broker_name: queue.read_queue_nums for queue in route.queue_datas} == {
        "broker-a": 4,
        "broker-b": 8,
    }
    assert [broker.master for broker in route.broker_datas] == [A, B]
    tables.unregister("c", A, "broker-a")
    route = tables.route("T")
    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["broker-b"]
    assert tables.route("OnlyA") is None
    check_invariants(tables)


def test_a_route_shares_nothing_with_the_tables() -> None:
    """Changing an answer does not change the tables."""
    tables = RouteTables()
    tables.register(registration(filter_servers=["10.0.0.1:4000"]), 0)
    route = tables.route("T")
    assert route is not None
    route.broker_datas[0].broker_addrs.clear()
    route.queue_datas.clear()
    route.filter_server_table.clear()
    again = tables.route("T")
    assert again is not None
    assert again.broker_datas[0].broker_addrs == {0: A}
    assert again.filter_server_table == {A: ["10.0.0.1:4000"]}


def test_a_slave_learns_its_master() -> None:
    """An old-style slave adds its address, defines no topics, and gets the master's address and replication
    address."""
    tables = RouteTables()
    assert tables.register(registration(ha_address="10.0.0.1:10912"), 0).master_address is None
    outcome = tables.register(registration(topic("S"), broker_id=1, address=SLAVE), 0)
    assert outcome == (True, A, "10.0.0.1:10912", None)
    assert tables.brokers["broker-a"].broker_addrs == {0: A, 1: SLAVE}
    assert "S" not in tables.topics


def test_a_slave_without_a_master_learns_nothing() -> None:
    """Among slaves of a 5.x broker, the one with the lowest id defines topics while there is no master."""
    tables = RouteTables()
    outcome = tables.register(registration(broker_id=2, address=SLAVE, enable_acting_master=False), 0)
    assert outcome == (True, None, None, None)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW
    tables.register(registration(topic("Higher"), broker_id=3, address=B, enable_acting_master=False), 0)
    assert "Higher" not in tables.topics


def test_an_acting_master_is_read_only() -> None:
    """With acting masters, topics lose the write permission when the master leaves; the master restores
    it."""
    tables = RouteTables()
    tables.register(registration(enable_acting_master=True), 0)
    tables.register(registration(broker_id=1, address=SLAVE, enable_acting_master=True), 0)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW
    tables.unregister("c", A, "broker-a")
    assert tables.topics["T"]["broker-a"].perm == PERM_READ
    tables.register(registration(enable_acting_master=True), 0)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW


def test_an_old_slave_without_a_master_defines_nothing() -> None:
    """Before 5.0 only masters define topics."""
    tables = RouteTables()
    tables.register(registration(broker_id=1, address=SLAVE), 0)
    assert tables.topics == {}
    assert tables.brokers["broker-a"].broker_addrs == {1: SLAVE}


def test_a_promoted_slave_defines_its_topics() -> None:
    """The topics are written although the data version is that of its registration as a slave."""
    tables = RouteTables()
    tables.register(registration(topic("T", perm=4)), 0)
    tables.register(registration(topic("T"), counter=2, broker_id=1, address=SLAVE), 0)
    tables.unregister("c", A, "broker-a")
    assert tables.topics["T"]["broker-a"].perm == PERM_READ
    tables.register(registration(topic("T"), counter=2, address=SLAVE), 0)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW


def test_a_promoted_slave_leaves_its_old_id() -> None:
    """An address is listed under one id only."""
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.register(registration(broker_id=1, address=SLAVE), 0)
    tables.register(registration(counter=2, address=SLAVE), 0)
    assert tables.brokers["broker-a"].broker_addrs == {0: SLAVE}
    check_invariants(tables)


def test_an_older_state_version_does_not_take_an_id_over() -> None:
    """The address with the higher state version stays; the other one is not listed as live."""
    tables = RouteTables()
    tables.register(registration(state_version=5), 0)
    assert not tables.register(registration(topic("X"), address=B, state_version=4), 0).accepted
    assert tables.brokers["broker-a"].broker_addrs == {0: A}
    assert BrokerKey("c", B) not in tables.live
    assert "X" not in tables.topics
    assert tables.register(registration(address=B, state_version=5), 0).accepted
    assert tables.brokers["broker-a"].broker_addrs == {0: B}


def test_what_a_former_master_sent_before_it_was_cut_off_changes_nothing() -> None:
    """It arrives after its successor has registered, before or after its own registration as a slave."""
    tables = RouteTables()
    late = registration(topic("X"), address=A, state_version=4)
    tables.register(registration(address=A, state_version=4), 0)
    tables.register(registration(address=B, state_version=5), 0)
    assert not tables.register(late, 0).accepted
    tables.register(registration(broker_id=2, address=A, state_version=5), 0)
    assert not tables.register(late, 0).accepted
    assert tables.brokers["broker-a"].broker_addrs == {0: B, 2: A}
    assert set(tables.live) == {BrokerKey("c", A), BrokerKey("c", B)}
    assert "X" not in tables.topics
    check_invariants(tables)


def test_topics_are_written_only_when_the_version_changed_or_they_are_missing() -> None:
    """A second registration with the stored version only adds missing topics, for example after a
    deletion."""
    tables = RouteTables()
    tables.register(registration(topic("T", 4), topic("U")), 0)
    tables.register(registration(topic("T", 8), topic("V")), 0)
    assert tables.topics["T"]["broker-a"].read_queue_nums == 4
    assert "V" in tables.topics
    tables.register(registration(topic("T", 8), counter=2), 0)
    assert tables.topics["T"]["broker-a"].read_queue_nums == 8
    assert "U" in tables.topics, "a topic missing from a later registration stays"


def test_a_broker_with_one_topic_may_register() -> None:
    """Java 5 refuses the first registration with exactly one topic; here it is accepted, and the other topics
    follow with the same version."""
    tables = RouteTables()
    assert tables.register(registration(topic("T")), 0).accepted
    tables.register(registration(topic("T"), topic("U")), 0)
    assert set(tables.topics) == {"T", "U"}


def test_filter_servers() -> None:
    """A list replaces the filter servers, an empty list removes them, None leaves them unchanged."""
    tables = RouteTables()
    tables.register(registration(filter_servers=["f:1"]), 0)
    tables.register(registration(filter_servers=None), 0)
    assert tables.filter_servers == {BrokerKey("c", A): ["f:1"]}
    tables.register(registration(filter_servers=[]), 0)
    assert tables.filter_servers == {}


@pytest.mark.row("S304")
def test_a_silent_broker_expires() -> None:
    """A broker expires after two minutes without a request, or after its own time-out; a registration or
    heartbeat restarts the time."""
    tables, connection = RouteTables(), object()
    tables.register(registration(connection=connection), 0)
    tables.register(registration(broker_name="broker-b", address=B, timeout_ms=300_000), 0)
    assert tables.expire(120_000) == []
    tables.touch("c", A, 100_000)
    assert tables.expire(220_000) == []
    (gone,) = tables.expire(220_001)
    assert gone.connection is connection
    assert tables.route("T") is not None
    (gone,) = tables.expire(300_001)
    assert gone.broker_name == "broker-b"
    assert (tables.topics, tables.brokers, tables.clusters, tables.live) == ({}, {}, {}, {})


def test_a_touch_makes_nobody_known() -> None:
    tables = RouteTables()
    tables.touch("c", A, 1)
    assert tables.live == {}


def test_a_closed_connection_takes_its_brokers_along() -> None:
    """Brokers whose last registration used the connection are removed; one that has registered over another
    connection since stays."""
    tables, old, new = RouteTables(), object(), object()
    tables.register(registration(connection=old), 0)
    tables.register(registration(broker_name="broker-b", address=B, connection=old), 0)
    tables.register(registration(connection=new), 0)
    assert [entry.broker_name for entry in tables.unregister_connection(old)] == ["broker-b"]
    assert list(tables.brokers) == ["broker-a"]
    check_invariants(tables)


def test_unregister_takes_only_what_it_names() -> None:
    """Another broker name, another cluster or an unknown address change nothing."""
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.unregister("c", A, "broker-b")
    tables.unregister("other", A, "broker-a")
    tables.unregister("c", B, "broker-a")
    assert tables.brokers["broker-a"].broker_addrs == {0: A}
    assert BrokerKey("c", A) in tables.live


def test_a_renamed_broker_leaves_its_old_name() -> None:
    """The old name would otherwise stand in the routes for ever."""
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.register(registration(broker_name="broker-b"), 0)
    assert list(tables.brokers) == ["broker-b"]
    check_invariants(tables)


def test_a_broker_that_changes_its_cluster_moves() -> None:
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.register(registration(cluster="d"), 0)
    assert tables.clusters == {"d": {"broker-a"}}
    assert tables.brokers["broker-a"].cluster == "d"
    check_invariants(tables)


def test_write_permission() -> None:
    """Wiping clears the write bit, adding sets exactly read and write (dropping inherit, as Java does);
    both count the broker's topics."""
    tables = RouteTables()
    tables.register(registration(topic("T", perm=7), topic("U")), 0)
    tables.register(registration(topic("T"), broker_name="broker-b", address=B), 0)
    assert tables.wipe_write_perm("broker-a") == 2
    assert tables.topics["T"]["broker-a"].perm == 5
    assert tables.topics["T"]["broker-b"].perm == PERM_RW
    assert tables.add_write_perm("broker-a") == 2
    assert tables.topics["T"]["broker-a"].perm == PERM_RW
    assert tables.wipe_write_perm("unknown") == 0


def test_delete_topic() -> None:
    """From all clusters or from one; it is back after the next registration of a broker that still has it."""
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.register(registration(broker_name="broker-b", address=B, cluster="d"), 0)
    tables.delete_topic("T", "d")
    assert list(tables.topics["T"]) == ["broker-a"]
    tables.delete_topic("T")
    assert tables.route("T") is None
    tables.register(registration(), 0)
    assert tables.route("T") is not None
    check_invariants(tables)


def test_register_topic_is_for_known_brokers() -> None:
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.register_topic(
        "New", [QueueData(broker_name="nobody"), QueueData(broker_name="broker-a", read_queue_nums=2)]
    )
    assert list(tables.topics["New"]) == ["broker-a"]
    tables.register_topic("Empty", [QueueData(broker_name="nobody")])
    assert "Empty" not in tables.topics


def test_topics_by_flag() -> None:
    """Unit topics, topics subscribed by units, and the latter without the former."""
    tables = RouteTables()
    tables.register(
        registration(
            topic("Plain"), topic("Unit", sys_flag=1), topic("Sub", sys_flag=2), topic("Both", sys_flag=3)
        ),
        0,
    )
    assert tables.topics_by_flag(UNIT) == ["Unit", "Both"]
    assert tables.topics_by_flag(UNIT_SUB) == ["Sub", "Both"]
    assert tables.topics_by_flag(UNIT_SUB, UNIT) == ["Sub"]


names, clusters, addresses, ids = (
    st.sampled_from(pool) for pool in (["broker-a", "broker-b"], ["c", "d"], [A, B, SLAVE], [0, 1, 2])
)
topic_lists = st.lists(st.sampled_from(["T", "U", "V"]), unique=True).map(
    lambda given: tuple(map(topic, given))
)
steps = st.one_of(
    st.fixed_dictionaries(
        {
            "step": st.just("register"),
            "cluster": clusters,
            "broker_name": names,
            "broker_id": ids,
            "address": addresses,
            "topics": topic_lists,
            "enable_acting_master": st.sampled_from([None, False, True]),
            "data_version": st.builds(
                DataVersion, counter=st.integers(0, 2), state_version=st.integers(0, 1)
            ),
            "filter_servers": st.sampled_from([None, [], ["f:1"]]),
            "connection": st.sampled_from(["one", "two"]),
        }
    ),
    st.fixed_dictionaries(
        {"step": st.just("unregister"), "cluster": clusters, "address": addresses, "broker_name": names}
    ),
    st.fixed_dictionaries(
        {"step": st.just("unregister_connection"), "connection": st.sampled_from(["one", "two"])}
    ),
    st.fixed_dictionaries(
        {
            "step": st.just("delete_topic"),
            "topic": st.sampled_from(["T", "U"]),
            "cluster": st.none() | clusters,
        }
    ),
    st.fixed_dictionaries({"step": st.just("expire"), "now_ms": st.integers(0, 200_000)}),
    st.fixed_dictionaries({"step": st.just("wipe_write_perm"), "broker_name": names}),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=30))
def test_no_sequence_leaves_anything_dangling(sequence: list[dict[str, Any]]) -> None:
    """After any sequence of events: no topic of an unknown broker, no address that cannot expire, no empty
    entry."""
    tables = RouteTables()
    for number, step in enumerate(sequence):
        apply(tables, step, number)
        check_invariants(tables)
    tables.expire(10_000_000)
    assert (tables.topics, tables.brokers, tables.clusters, tables.live, tables.filter_servers) == (
        {},
        {},
        {},
        {},
        {},
    )


def apply(tables: RouteTables, step: dict[str, Any], number: int) -> None:
    arguments = dict(step)
    name = arguments.pop("step")
    if name == "register":
        arguments["topics"] = queues_of(*arguments["topics"], broker_name=arguments["broker_name"])
        tables.register(Registration(**arguments), number)
    else:
        getattr(tables, name)(**arguments)


def seen(tables: RouteTables) -> dict[str, Any]:
    """What clients see, whatever the order."""
    routes = {}
    for name in ("T", "U", "V"):
        route = tables.route(name)
        routes[name] = route and (
            {queue.broker_name: queue for queue in route.queue_datas},
            {broker.broker_name: broker for broker in route.broker_datas},
        )
    return {
        "routes": routes,
        "all": sorted(tables.all_topics()),
        "clusters": {cluster: tables.topics_of_cluster(cluster) for cluster in ("c", "d")},
    }


reading = steps.filter(lambda step: step["step"] != "wipe_write_perm")


@settings(deadline=None)
@given(st.lists(st.tuples(reading, st.integers(0, 3)), max_size=30))
def test_unfinished_work_is_not_seen(sequence: list[tuple[dict[str, Any], int]]) -> None:
    """After each event, and after each slice of the work that it leaves, clients see what they would see if
    all work were finished at once; once it is, the tables hold no remains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_module, "_SLICE", 1)
        at_once, sliced = RouteTables(), RouteTables()
        patch.setattr(RouteTables, "_add_work", lambda tables, work: tables._work.append(work))
        for number, (step, slices) in enumerate(sequence):
            if step["step"] == "register":
                step = step | {"enable_acting_master": None}
            apply(at_once, step, number)
            at_once.finish()
            apply(sliced, step, number)
            assert seen(sliced) == seen(at_once)
            for _ in range(slices):
                sliced.step()
                assert seen(sliced) == seen(at_once)
        sliced.finish()
        check_invariants(sliced)
        assert (sliced.topics, sliced.live) == (at_once.topics, at_once.live)
        assert (sliced._landing, sliced._leaving, sliced.working) == ({}, {}, False)


def test_a_registration_of_many_topics_counts_at_once_and_leaves_work() -> None:
    """All its topics are in the routes before they are in the table, and none is once the broker has left,
    before they are removed from there."""
    tables = RouteTables()
    called = []
    tables.on_work = lambda: called.append(True)
    many = [topic(f"T{number}") for number in range(5_000)]
    tables.register(registration(*many), 0)
    assert called
    assert len(tables.topics) < 5_000
    assert len(tables.all_topics()) == 5_000
    assert tables.route("T4999") is not None
    tables.finish()
    assert len(tables.topics) == 5_000
    tables.unregister("c", A, "broker-a")
    assert len(tables.topics) > 1_000
    assert (tables.all_topics(), tables.route("T0"), tables.route("T4999")) == ([], None, None)
    tables.register(registration(topic("T1")), 0)
    assert tables.all_topics() == ["T1"]
    tables.finish()
    assert set(tables.topics) == {"T1"}


def test_closing_a_connection_looks_at_its_own_brokers_only() -> None:
    """However many brokers others have registered, only those of the connection are visited; a broker that
    came again elsewhere stays."""

    class Once:
        """A connection that may not be compared with another."""

        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise AssertionError("connections were compared")

    tables, mine, other = RouteTables(), Once(), Once()
    tables.register(registration(broker_name="a", address="10.0.0.1:1", connection=mine), 0)
    tables.register(registration(broker_name="b", address="10.0.0.1:2", connection=other), 0)
    tables.register(registration(broker_name="c", address="10.0.0.1:3", connection=mine), 0)
    tables.register(registration(broker_name="c", address="10.0.0.1:3", connection=other), 0)
    assert [entry.broker_name for entry in tables.unregister_connection(mine)] == ["a"]
    assert not tables.registered_over(mine)
    assert [entry.broker_name for entry in tables.unregister_connection(other)] == ["b", "c"]
    assert (tables.live, tables.brokers, tables.topics) == ({}, {}, {})


@pytest.mark.parametrize("limit", ["MAX_BROKERS", "MAX_BROKERS_PER_CONNECTION"])
def test_so_many_brokers_and_no_more(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """In all, and over one connection; those that are known register as ever, and one that goes makes
    room."""
    monkeypatch.setattr(tables_module, limit, 2)
    tables, connection = RouteTables(), object()

    def register(name: str, port: int) -> None:
        tables.register(
            registration(
                topic(f"of-{name}"), broker_name=name, address=f"10.0.0.1:{port}", connection=connection
            ),
            0,
        )

    register("a", 1)
    register("b", 2)
    with pytest.raises(RequestRefused):
        register("c", 3)
    assert (sorted(tables.brokers), "of-c" in tables.topics, tables.refused) == (["a", "b"], False, 1)
    register("a", 1)
    tables.unregister("c", "10.0.0.1:1", "a")
    register("c", 3)


@pytest.mark.parametrize("limit", ["MAX_REGISTERED_TOPICS", "MAX_ROUTE_ENTRIES"])
def test_so_many_topics_and_no_more(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Topics that a broker has already count once, however they came; what is dropped makes room."""
    monkeypatch.setattr(tables_module, limit, 2)
    tables = RouteTables()
    tables.register(registration(topic("A"), topic("B")), 0)
    tables.register(registration(topic("A"), topic("B")), 0)
    with pytest.raises(RequestRefused, match="at most 2"):
        tables.register(registration(topic("C")), 0)
    queue = next(iter(tables.topics["A"].values()))
    tables.register_topic("A", [queue])
    with pytest.raises(RequestRefused, match="at most 2"):
        tables.register_topic("C", [queue])
    tables.delete_topic("A")
    tables.register_topic("C", [queue])
    assert sorted(tables.topics) == ["B", "C"]


def test_a_live_broker_that_is_replaced_is_named() -> None:
    """The same name and id from another address: the newcomer wins, and whom it replaced is known, unless
    that one was silent."""
    tables = RouteTables()
    assert tables.register(registration(), 0).replaced is None
    assert tables.register(registration(), 0).replaced is None
    assert tables.register(registration(address="10.0.0.9:1"), 0).replaced == A
    tables.expire(1_000_000)
    assert tables.register(registration(), 0).replaced is None


@pytest.mark.parametrize("slice_topics", [1, 256])
def test_topics_that_a_complete_registration_lacks_leave_the_routes(
    monkeypatch: pytest.MonkeyPatch, slice_topics: int
) -> None:
    """They are gone at once, however much work is unfinished, from all lists; those of other brokers, and of
    registrations that need not be complete, stay. A slave's registration removes nothing."""
    monkeypatch.setattr(tables_module, "_SLICE", slice_topics)
    tables = RouteTables()
    names = [f"T{number}" for number in range(9)]
    everything = [topic(name) for name in names]
    tables.register(registration(*everything), 0, is_complete=True)
    other = registration(*everything, broker_name="broker-b", address=B, cluster="d")
    tables.register(other, 0, is_complete=True)
    tables.register(registration(topic("T0"), counter=2), 0)
    tables.register(
        registration(topic("T0"), counter=2, broker_id=1, address=SLAVE, enable_acting_master=None),
        0,
        is_complete=True,
    )
    assert tables.topics_of_cluster("c") == names
    tables.register(registration(topic("T0"), topic("new"), counter=3), 0, is_complete=True)
    for _ in range(2):
        assert tables.topics_of_cluster("c") == ["T0", "new"]
        assert sorted(tables.all_topics()) == [*names, "new"]
        routes = {name: tables.route(name) for name in names}
        assert [name for name, route in routes.items() if route and len(route.queue_datas) == 2] == ["T0"]
        assert all(route is not None and route.broker_datas[-1].cluster == "d" for route in routes.values())
        tables.finish()
    tables.unregister("d", B, "broker-b")
    tables.finish()
    assert sorted(tables.all_topics()) == ["T0", "new"]
