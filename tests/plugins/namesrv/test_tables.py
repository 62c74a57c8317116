"""The name server's tables."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.model.route import QueueData
from rmqkit.model.sysflag import PERM_READ, PERM_RW
from rmqkit.model.topic import DataVersion, TopicConfig
from rmqkit_namesrv.entries import BrokerKey, Registration
from rmqkit_namesrv.tables import UNIT, UNIT_SUB, RouteTables

A, B, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def topic(name: str, queues: int = 4, perm: int = PERM_RW, sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag)


def registration(*topics: TopicConfig, counter: int = 1, state_version: int = 0, **changes: Any) -> Registration:
    plain = Registration(
        cluster="c",
        broker_name="broker-a",
        broker_id=0,
        address=A,
        topics=topics or (topic("T"), topic("U")),
        data_version=DataVersion(counter=counter, timestamp=1, state_version=state_version),
    )
    return attrs.evolve(plain, **changes)


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
        expected = {topic for topic, queues in tables.topics.items() if set(queues) & tables.clusters[cluster]}
        assert set(tables.topics_of_cluster(cluster)) == expected
    assert set(tables.filter_servers) <= set(tables.live)


@pytest.mark.row("S299", "S300", "S301", "S302", "S327")
def test_one_registration_fills_every_table() -> None:
    """Broker name -> addresses by id, topic -> queues by broker, cluster -> names, (cluster, address) -> life, all in maps."""
    tables, connection = RouteTables(), object()
    tables.register(registration(topic("T"), connection=connection, ha_address="10.0.0.1:10912"), 5)
    assert tables.brokers["broker-a"].broker_addrs == {0: A}
    assert tables.brokers["broker-a"].cluster == "c"
    assert tables.topics["T"]["broker-a"] == QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6)
    assert tables.clusters == {"c": {"broker-a"}}
    entry = tables.live[BrokerKey("c", A)]
    assert (entry.last_update_ms, entry.ha_address, entry.data_version.counter) == (5, "10.0.0.1:10912", 1)
    assert entry.connection is connection


@pytest.mark.row("S298")
def test_two_brokers_share_a_topic() -> None:
    """A route lists every broker that has the topic; one that leaves takes only its own queues along."""
    tables = RouteTables()
    tables.register(registration(topic("T"), topic("OnlyA")), 0)
    tables.register(registration(topic("T", 8), broker_name="broker-b", address=B), 0)
    route = tables.route("T")
    assert route is not None
    assert {queue.broker_name: queue.read_queue_nums for queue in route.queue_datas} == {"broker-a": 4, "broker-b": 8}
    assert [broker.master for broker in route.broker_datas] == [A, B]
    tables.unregister("c", A, "broker-a")
    route = tables.route("T")
    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["broker-b"]
    assert tables.route("OnlyA") is None
    check_invariants(tables)


def test_a_route_shares_nothing_with_the_tables() -> None:
    """Changing an answer changes no table."""
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
    """An old-style slave adds its address but defines no topics, and is told the master's address and replication address."""
    tables = RouteTables()
    assert tables.register(registration(ha_address="10.0.0.1:10912"), 0).master_address is None
    outcome = tables.register(registration(topic("S"), broker_id=1, address=SLAVE), 0)
    assert outcome == (True, A, "10.0.0.1:10912")
    assert tables.brokers["broker-a"].broker_addrs == {0: A, 1: SLAVE}
    assert "S" not in tables.topics


def test_a_slave_without_a_master_learns_nothing() -> None:
    """Of a 5.x broker the slave of the lowest id defines topics while there is no master."""
    tables = RouteTables()
    outcome = tables.register(registration(broker_id=2, address=SLAVE, enable_acting_master=False), 0)
    assert outcome == (True, None, None)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW
    tables.register(registration(topic("Higher"), broker_id=3, address=B, enable_acting_master=False), 0)
    assert "Higher" not in tables.topics


def test_an_acting_master_is_read_only() -> None:
    """With acting masters on, topics lose the write bit when the master goes and when a slave defines them; the master brings it back."""
    tables = RouteTables()
    tables.register(registration(enable_acting_master=True), 0)
    tables.register(registration(broker_id=1, address=SLAVE, enable_acting_master=True), 0)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW
    tables.unregister("c", A, "broker-a")
    assert tables.topics["T"]["broker-a"].perm == PERM_READ
    tables.register(registration(topic("T"), counter=2, broker_id=1, address=SLAVE, enable_acting_master=True), 0)
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
    """Although its data version is the one it registered as a slave with."""
    tables = RouteTables()
    tables.register(registration(topic("T", perm=4)), 0)
    tables.register(registration(topic("T"), counter=2, broker_id=1, address=SLAVE), 0)
    tables.unregister("c", A, "broker-a")
    assert tables.topics["T"]["broker-a"].perm == PERM_READ
    tables.register(registration(topic("T"), counter=2, address=SLAVE), 0)
    assert tables.topics["T"]["broker-a"].perm == PERM_RW


def test_a_promoted_slave_leaves_its_old_id() -> None:
    """An address stands under one id only."""
    tables = RouteTables()
    tables.register(registration(), 0)
    tables.register(registration(broker_id=1, address=SLAVE), 0)
    tables.register(registration(counter=2, address=SLAVE), 0)
    assert tables.brokers["broker-a"].broker_addrs == {0: SLAVE}
    check_invariants(tables)


def test_an_older_state_version_does_not_take_an_id_over() -> None:
    """The address with the higher state version stays; the other one is not even listed as alive."""
    tables = RouteTables()
    tables.register(registration(state_version=5), 0)
    assert not tables.register(registration(topic("X"), address=B, state_version=4), 0).accepted
    assert tables.brokers["broker-a"].broker_addrs == {0: A}
    assert BrokerKey("c", B) not in tables.live
    assert "X" not in tables.topics
    assert tables.register(registration(address=B, state_version=5), 0).accepted
    assert tables.brokers["broker-a"].broker_addrs == {0: B}


def test_topics_are_written_only_when_the_version_changed_or_they_are_missing() -> None:
    """A second registration with the stored version changes nothing but fills in what is missing, for instance after a deletion."""
    tables = RouteTables()
    tables.register(registration(topic("T", 4), topic("U")), 0)
    tables.register(registration(topic("T", 8), topic("V")), 0)
    assert tables.topics["T"]["broker-a"].read_queue_nums == 4
    assert "V" in tables.topics
    tables.register(registration(topic("T", 8), counter=2), 0)
    assert tables.topics["T"]["broker-a"].read_queue_nums == 8
    assert "U" in tables.topics, "a topic missing from a later registration stays"


def test_a_broker_with_one_topic_may_register() -> None:
    """Java 5 refuses the first registration with exactly one topic; here it is taken and the rest follows under the same version."""
    tables = RouteTables()
    assert tables.register(registration(topic("T")), 0).accepted
    tables.register(registration(topic("T"), topic("U")), 0)
    assert set(tables.topics) == {"T", "U"}


def test_filter_servers() -> None:
    """A list replaces, an empty list removes, None leaves what is known."""
    tables = RouteTables()
    tables.register(registration(filter_servers=["f:1"]), 0)
    tables.register(registration(filter_servers=None), 0)
    assert tables.filter_servers == {BrokerKey("c", A): ["f:1"]}
    tables.register(registration(filter_servers=[]), 0)
    assert tables.filter_servers == {}


@pytest.mark.row("S304")
def test_a_silent_broker_expires() -> None:
    """Two minutes without a word, or what the broker itself asked for; a registration or a touch starts the time anew."""
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
    """Those that registered over it last; a broker that came back over another connection stays."""
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
    """Wiping clears the write bit, adding sets exactly read and write (dropping inherit, as Java does); both count the broker's topics."""
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
    tables.register_topic("New", [QueueData(broker_name="nobody"), QueueData(broker_name="broker-a", read_queue_nums=2)])
    assert list(tables.topics["New"]) == ["broker-a"]
    tables.register_topic("Empty", [QueueData(broker_name="nobody")])
    assert "Empty" not in tables.topics


def test_topics_by_flag() -> None:
    """Unit topics, topics subscribed by units, and the latter without the former."""
    tables = RouteTables()
    tables.register(registration(topic("Plain"), topic("Unit", sys_flag=1), topic("Sub", sys_flag=2), topic("Both", sys_flag=3)), 0)
    assert tables.topics_by_flag(UNIT) == ["Unit", "Both"]
    assert tables.topics_by_flag(UNIT_SUB) == ["Sub", "Both"]
    assert tables.topics_by_flag(UNIT_SUB, UNIT) == ["Sub"]


names, clusters, addresses, ids = (st.sampled_from(pool) for pool in (["broker-a", "broker-b"], ["c", "d"], [A, B, SLAVE], [0, 1, 2]))
topic_lists = st.lists(st.sampled_from(["T", "U", "V"]), unique=True).map(lambda given: tuple(map(topic, given)))
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
            "data_version": st.builds(DataVersion, counter=st.integers(0, 2), state_version=st.integers(0, 1)),
            "filter_servers": st.sampled_from([None, [], ["f:1"]]),
            "connection": st.sampled_from(["one", "two"]),
        }
    ),
    st.fixed_dictionaries({"step": st.just("unregister"), "cluster": clusters, "address": addresses, "broker_name": names}),
    st.fixed_dictionaries({"step": st.just("unregister_connection"), "connection": st.sampled_from(["one", "two"])}),
    st.fixed_dictionaries({"step": st.just("delete_topic"), "topic": st.sampled_from(["T", "U"]), "cluster": st.none() | clusters}),
    st.fixed_dictionaries({"step": st.just("expire"), "now_ms": st.integers(0, 200_000)}),
    st.fixed_dictionaries({"step": st.just("wipe_write_perm"), "broker_name": names}),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=30))
def test_no_sequence_leaves_anything_dangling(sequence: list[dict[str, Any]]) -> None:
    """After any sequence of events: no topic of an unknown broker, no address that cannot expire, no empty entry."""
    tables = RouteTables()
    for number, step in enumerate(sequence):
        arguments = dict(step)
        name = arguments.pop("step")
        if name == "register":
            tables.register(Registration(**arguments), number)
        else:
            getattr(tables, name)(**arguments)
        check_invariants(tables)
    tables.expire(10_000_000)
    assert (tables.topics, tables.brokers, tables.clusters, tables.live, tables.filter_servers) == ({}, {}, {}, {}, {})
