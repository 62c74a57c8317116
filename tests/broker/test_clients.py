"""The client table: connected clients, and notifications of groups."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from rmqkit.broker import clients
from rmqkit.broker.clients import ClientInfo, ClientTable, ConsumerGroup
from rmqkit.errors import RequestRefused
from rmqkit.model.subscription import (
    BROADCASTING,
    CLUSTERING,
    ConsumerData,
    SubscriptionData,
    tag_subscription,
)
from rmqkit.plugin.request import Peer
from rmqkit.testing.peer import FakePeer
from tests.broker.kit import client


def data(*topics: str, group: str = "g", **fields: Any) -> ConsumerData:
    return ConsumerData(
        group_name=group, subscription_data_set=[SubscriptionData(topic=topic) for topic in topics], **fields
    )


class Table(ClientTable):
    """A client table that records its notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, list[str]]] = []
        self.on_group_change.append(self._note)

    def _note(self, group: ConsumerGroup) -> None:
        self.told.append((group.name, group.client_ids()))


@pytest.mark.row("S123", "S124")
def test_first_registration_creates_the_group_and_is_a_change() -> None:
    """A first heartbeat creates the group with its settings, member and subscriptions, and notifies the
    listeners."""
    table, member = Table(), client("c1")
    assert table.register_consumer(
        data("T", message_model=CLUSTERING, consume_type="CONSUME_PASSIVELY"), member, notify=True
    )
    group = table.consumers["g"]
    assert (group.consume_type, group.message_model, group.broadcasting) == (
        "CONSUME_PASSIVELY",
        CLUSTERING,
        False,
    )
    assert group.members == {member.peer: member}
    assert set(group.subscriptions) == {"T"}
    assert table.told == [("g", ["c1"])]


@pytest.mark.row("S124")
def test_an_equal_heartbeat_is_no_change() -> None:
    """The same client with the same topics renews its time without a notification."""
    table, peer = Table(), FakePeer()
    table.register_consumer(data("T"), client("c1", peer, seen_ms=1), notify=True)
    table.told.clear()
    assert not table.register_consumer(data("T"), client("c1", peer, seen_ms=2), notify=True)
    assert table.told == []
    assert table.consumers["g"].members[peer].last_seen_ms == 2


@pytest.mark.row("S124")
def test_a_second_connection_is_a_change() -> None:
    """A new connection notifies the group, itself included, once."""
    table = Table()
    table.register_consumer(data("T"), client("c1"), notify=True)
    assert table.register_consumer(data("T"), client("c2"), notify=True)
    assert table.told == [("g", ["c1"]), ("g", ["c1", "c2"])]


@pytest.mark.row("S124")
def test_topics_added_or_removed_are_a_change() -> None:
    """The last heartbeat's topics become the group's, and a difference is a change."""
    table, member = Table(), client()
    table.register_consumer(data("A"), member, notify=True)
    assert table.register_consumer(data("A", "B"), member, notify=True)
    assert set(table.consumers["g"].subscriptions) == {"A", "B"}
    assert table.register_consumer(data("B"), member, notify=True)
    assert set(table.consumers["g"].subscriptions) == {"B"}
    assert len(table.told) == 3


@pytest.mark.row("S124")
def test_a_changed_expression_alone_is_no_change() -> None:
    """A newer version of a known topic's expression is applied silently."""
    table, member = Table(), client()
    old, new = tag_subscription("T", "A", 1), tag_subscription("T", "B", 2)
    table.register_consumer(ConsumerData(group_name="g", subscription_data_set=[old]), member, notify=True)
    assert not table.register_consumer(
        ConsumerData(group_name="g", subscription_data_set=[new]), member, notify=True
    )
    assert table.subscription("g", "T") == new
    assert len(table.told) == 1


def test_an_older_subscription_version_is_ignored() -> None:
    """An older version, from a client that lags behind, does not replace the newer one."""
    table = Table()
    new, old = tag_subscription("T", "B", 2), tag_subscription("T", "A", 1)
    table.register_consumer(
        ConsumerData(group_name="g", subscription_data_set=[new]), client("c1"), notify=True
    )
    table.register_consumer(
        ConsumerData(group_name="g", subscription_data_set=[old]), client("c2"), notify=True
    )
    assert table.subscription("g", "T") == new


def test_without_notify_nobody_is_told_but_the_change_is_reported() -> None:
    """A group with notifications disabled changes silently."""
    table = Table()
    assert table.register_consumer(data("T"), client(), notify=False)
    assert table.told == []


def test_null_subscriptions_are_no_subscriptions() -> None:
    """The Go client sends null instead of an empty set."""
    table = Table()
    table.register_consumer(ConsumerData(group_name="g", subscription_data_set=None), client(), notify=True)
    assert table.consumers["g"].subscriptions == {}


def test_settings_missing_from_a_heartbeat_stay_as_they_were() -> None:
    """A heartbeat without a message model keeps the group's."""
    table, member = Table(), client()
    table.register_consumer(data("T", message_model=BROADCASTING), member, notify=True)
    nothing = ConsumerData(
        group_name="g",
        message_model=None,
        consume_type=None,
        consume_from_where=None,
        subscription_data_set=[],
    )
    table.register_consumer(nothing, member, notify=True)
    assert table.consumers["g"].broadcasting


@pytest.mark.row("S125")
def test_unregistering_a_consumer_tells_those_that_stay() -> None:
    """When one of two members leaves, the other is notified; when the last leaves, the group is removed."""
    table = Table()
    table.register_consumer(data("T"), client("c1"), notify=True)
    table.register_consumer(data("T"), client("c2"), notify=True)
    table.told.clear()
    table.unregister("c1", None, "g", notify=True)
    assert table.told == [("g", ["c2"])]
    table.unregister("c2", None, "g", notify=True)
    assert table.consumers == {}
    assert len(table.told) == 1


def test_unregistering_what_is_not_there_changes_nothing() -> None:
    """Unknown clients, groups and producer groups are ignored."""
    table = Table()
    table.register_consumer(data("T"), client("c1"), notify=False)
    table.register_producer("p", client("c1"))
    table.unregister("nobody", "p", "g", notify=True)
    table.unregister("c1", "other", "other", notify=True)
    assert (list(table.producers), list(table.consumers), table.told) == (["p"], ["g"], [])


@pytest.mark.row("S127")
def test_producers_come_and_go_by_group() -> None:
    """A producer group contains its clients by connection and is removed with the last one."""
    table = Table()
    first, second = client("c1"), client("c2")
    table.register_producer("p", first)
    table.register_producer("p", second)
    assert list(table.producers["p"].values()) == [first, second]
    table.unregister("c1", "p", None, notify=True)
    assert list(table.producers["p"].values()) == [second]
    table.unregister("c2", "p", None, notify=True)
    assert table.producers == {}


@pytest.mark.row("S091")
def test_a_dropped_connection_takes_all_its_clients_with_it() -> None:
    """A closed connection leaves all its groups at once, and remaining members are notified."""
    table, gone = Table(), FakePeer()
    for group in ("g", "h"):
        table.register_consumer(data("T", group=group), client("c1", gone), notify=False)
        table.register_producer(group, client("c1", gone))
    stays = client("c2")
    table.register_consumer(data("T"), stays, notify=False)
    table.register_producer("g", stays)
    table.drop_peer(gone)
    assert table.producers == {"g": {stays.peer: stays}}
    assert list(table.consumers) == ["g"]
    assert table.told == [("g", ["c2"])]
    table.drop_peer(gone)
    assert len(table.told) == 1


@pytest.mark.row("S295")
def test_silent_peers_are_those_past_the_time_out() -> None:
    """A client is silent when more than the time-out has passed since its last heartbeat, as producer or
    consumer."""
    table = Table()
    producer, consumer, alive = (
        client("p", seen_ms=1_000),
        client("c", seen_ms=1_000),
        client("a", seen_ms=1_001),
    )
    table.register_producer("p", producer)
    table.register_producer("p", alive)
    table.register_consumer(data("T"), consumer, notify=False)
    assert table.silent_peers(121_000, 120_000) == set()
    assert table.silent_peers(121_001, 120_000) == {producer.peer, consumer.peer}


@pytest.mark.row("S122")
def test_clients_are_found_by_id() -> None:
    """A client id leads to its connection among producers and consumers."""
    table = Table()
    producer, consumer = client("p"), client("c")
    table.register_producer("p", producer)
    table.register_consumer(data("T"), consumer, notify=False)
    assert table.find("p") is producer
    assert table.find("c") is consumer
    assert table.find("x") is None


def test_groups_that_consume_a_topic() -> None:
    """The groups whose subscriptions hold the topic, and their subscription."""
    table = Table()
    table.register_consumer(data("T"), client("1"), notify=False)
    table.register_consumer(data("T", "U", group="h"), client("2"), notify=False)
    assert table.groups_consuming("T") == ["g", "h"]
    assert table.groups_consuming("U") == ["h"]
    assert table.subscription("g", "U") is None
    assert table.subscription("nobody", "T") is None


def test_a_client_is_found_by_its_id() -> None:
    """The latest id is used, as a producer first, else as a consumer, and not after the client has left."""
    table, peer = Table(), FakePeer()
    table.register_consumer(data("T"), client("c1", peer), notify=False)
    assert table.find("c1") is table.consumers["g"].members[peer]
    table.register_producer("p", client("c1", peer))
    assert table.find("c1") is table.producers["p"][peer]
    table.register_producer("p", client("c2", peer))
    table.register_consumer(data("T"), client("c2", peer), notify=False)
    assert table.find("c1") is None
    table.drop_peer(peer)
    assert table.find("c2") is None


def test_dropping_a_connection_looks_at_its_own_groups_only() -> None:
    """Groups of other connections are not visited."""

    class Untouchable(dict[Peer, ClientInfo]):
        def __contains__(self, peer: object) -> bool:
            raise AssertionError("a group of another connection was looked at")

    table, gone = Table(), FakePeer()
    table.register_producer("mine", client("c1", gone))
    table.register_producer("other", client("c2"))
    table.producers["other"] = Untouchable(table.producers["other"])
    table.drop_peer(gone)
    assert list(table.producers) == ["other"]


def test_a_connection_is_in_so_many_groups_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producer and consumer groups are counted together; the client keeps its present groups, and leaving one
    makes room."""
    monkeypatch.setattr(clients, "MAX_GROUPS_PER_CONNECTION", 2)
    table, peer = Table(), FakePeer()
    table.register_producer("p", client("c1", peer))
    table.register_consumer(data("T"), client("c1", peer), notify=False)
    with pytest.raises(RequestRefused, match="at most 2 are allowed"):
        table.register_producer("q", client("c1", peer))
    with pytest.raises(RequestRefused, match="at most 2 are allowed"):
        table.register_consumer(data("T", group="h"), client("c1", peer), notify=False)
    assert (list(table.producers), list(table.consumers), table.refused) == (["p"], ["g"], 2)
    table.register_producer("p", client("c1", peer, seen_ms=5))
    table.unregister("c1", "p", None, notify=False)
    table.register_producer("q", client("c1", peer))
    table.register_producer("q", client("c2", FakePeer()))


def test_all_connections_together_are_in_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a connection makes room."""
    monkeypatch.setattr(clients, "MAX_MEMBERSHIPS", 1)
    table, peer = Table(), FakePeer()
    table.register_producer("p", client("c1", peer))
    with pytest.raises(RequestRefused, match="try again later"):
        table.register_producer("p", client("c2"))
    table.drop_peer(peer)
    table.register_producer("p", client("c2"))


def test_a_client_id_has_a_length_limit() -> None:
    """Ids of real clients are far shorter."""
    with pytest.raises(RequestRefused, match="at most 512"):
        Table().register_producer("p", client("c" * 513))


def test_subscriptions_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscriptions of one group and of all are limited; a group that goes offline makes room, and a refused
    heartbeat changes nothing."""
    monkeypatch.setattr(clients, "MAX_GROUP_SUBSCRIPTION_BYTES", 100_000)
    monkeypatch.setattr(clients, "MAX_SUBSCRIPTION_BYTES", 150_000)
    table, peer = Table(), FakePeer()

    def beat(group: str, size: int, peer: FakePeer) -> None:
        wanted = [SubscriptionData(topic="T", sub_string="x" * size)]
        table.register_consumer(
            ConsumerData(group_name=group, subscription_data_set=wanted), client("c1", peer), notify=False
        )

    with pytest.raises(RequestRefused, match="the subscriptions of the group g take"):
        beat("g", 100_001, peer)
    assert table.consumers == {}
    for _ in range(3):
        beat("g", 90_000, peer)
    with pytest.raises(RequestRefused, match="try again later"):
        beat("h", 90_000, FakePeer())
    table.drop_peer(peer)
    beat("h", 90_000, FakePeer())


def test_a_client_id_of_several_connections_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the group and the addresses; again when it was down to one connection before. What is remembered
    does not grow with ids that are gone."""
    table, first, second, third = ClientTable(), client("c"), client("c"), client("c")
    other = client("other")

    def join(*members: ClientInfo) -> int:
        for member in members:
            table.register_consumer(data("T"), member, notify=True)
        return caplog.text.count("client id c is in group g on 2 connections")

    assert join(first, other, first) == 0
    assert join(second, first, second, third) == 1
    assert f"{first.peer.remote_text}, {second.peer.remote_text}" in caplog.text
    table.drop_peer(second.peer)
    table.drop_peer(third.peer)
    assert join(second) == 2
    assert table.consumers["g"].shared_ids == {"c"}
    table.register_consumer(data("T"), evolve(second, client_id="d"), notify=True)
    assert table.consumers["g"].shared_ids == set()
