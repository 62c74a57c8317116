"""The leases of a connection, and the names of its topics."""

from __future__ import annotations

import logging

import pytest

from rmqkit.client import ClientError, Lease
from rmqkit.model.names import topic_fault
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from rmqkit_kombu.names import topic_of
from rmqkit_kombu.session import Session


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery"),
        ("a-b_c", "a-b_c"),
        ("amq.gen-1", "amq%2Egen-1"),
        ("worker@host.~x", "worker%40host%2E%7Ex"),
        ("50%", "50%25"),
        ("Größe", "Gr%C3%B6%C3%9Fe"),
    ],
)
def test_a_queue_has_a_legal_topic(queue: str, topic: str) -> None:
    """Different queues have different ones."""
    assert topic_of(queue) == topic
    assert topic_fault(topic) is None


def received(session: Session) -> Lease:
    """The next message of the queue."""
    ((queue, lease),) = session.receive(["jobs"], 5)
    assert queue == "jobs"
    assert isinstance(lease, Lease)
    return lease


def test_a_lost_lease_is_told_once(rocketmq: ThreadedRocketMQ, caplog: pytest.LogCaptureFixture) -> None:
    """What is settled behind the session's back is renewed no more, and settling it again does nothing."""
    session = Session(rocketmq.namesrv_text)
    session.open()
    try:
        session.declare("jobs")
        for body in (b"1", b"2", b"3"):
            session.send("jobs", body, properties={})
        leases = [received(session) for _ in range(3)]
        session._consumer("jobs").ack(*leases)
        with caplog.at_level(logging.WARNING, "rmqkit_kombu.session"):
            session._client.run(session._renew_all)
            session._client.run(session._renew_all)
        assert len(caplog.messages) == 3
        assert all("comes again" in line for line in caplog.messages)
        session.finish(leases[0])
        session.bury(leases[1], "unused")
        session.give_back(leases[2:])
        assert len(caplog.messages) == 3
    finally:
        session.close()


def test_a_closed_session(rocketmq: ThreadedRocketMQ) -> None:
    """It is closed once, gives nothing back, and refuses everything else."""
    session = Session(rocketmq.namesrv_text)
    session.open()
    session.declare("jobs")
    session.send("jobs", b"1", properties={})
    lease = received(session)
    session.close()
    session.close()
    session.give_back([lease])
    with pytest.raises(ClientError, match="not open"):
        session.receive(["jobs"], 0)


def test_the_size_of_a_queue(rocketmq: ThreadedRocketMQ) -> None:
    """All messages before anybody has consumed, those that are ready afterwards, none without a topic."""
    session = Session(rocketmq.namesrv_text)
    session.open()
    try:
        assert session.size("jobs") == 0
        session.declare("jobs")
        session.declare("jobs")
        for body in (b"1", b"2"):
            session.send("jobs", body, properties={})
        assert session.size("jobs") == 2
        session.receive(["jobs"], 5)
        assert session.size("jobs") == 1
    finally:
        session.close()


def test_a_group_that_may_not_consume(rocketmq: ThreadedRocketMQ) -> None:
    """An error that time does not cure is raised, whichever queue has it."""
    session = Session(rocketmq.namesrv_text)
    session.open()
    try:
        for queue in ("jobs", "others"):
            session.declare(queue)
        with rocketmq.blocking_client() as client:
            closed = SubscriptionGroupConfig(group_name="kombu-jobs", consume_enable=False)
            client.groups.put("kombu-jobs", closed)
        with pytest.raises(ClientError, match="kombu-jobs"):
            session.receive(["others", "jobs"], 5)
    finally:
        session.close()
