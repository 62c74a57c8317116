"""Leases over the log and the table of offsets of a broker."""

from __future__ import annotations

import pytest

from rmqkit.model.run import MessageRun
from rmqkit.plugin.acks import Acknowledgement
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.peer import FakePeer
from rmqkit_pop.engine import Engine, waiting_key
from rmqkit_pop.leases import QueueKey
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, PopDesk, bodies

KEY = QueueKey(GROUP, "T", 0)


def engine_of(pops: PopDesk) -> Engine:
    assert pops.service.engine is not None
    return pops.service.engine


def slow_appends(pops: PopDesk, patch: pytest.MonkeyPatch) -> list[Acknowledgement]:
    """Let what is appended be safe when the test says so."""
    real = pops.desk.broker.appender.append_durably
    waiting: list[Acknowledgement] = []

    def slow(run: MessageRun) -> Acknowledgement:
        waiting.append(Acknowledgement(real(run).results))
        return waiting[-1]

    patch.setattr(pops.desk.broker.appender, "append_durably", slow)
    return waiting


async def test_offsets_follow_what_is_safe(pops: PopDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lease is not as safe as an acknowledged message, the client waits, and the group's offset
    stays where it was."""
    await pops.desk.sent(body=b"a")
    waiting = slow_appends(pops, monkeypatch)
    peer = FakePeer()
    assert await pops.desk.outcome(pops.pop_request(), peer) is None
    engine = engine_of(pops)
    revive_queue = engine.revive_queue(GROUP)
    assert pops.desk.broker.offsets.get(GROUP, "T", 0) == 0
    assert engine.marks()[revive_queue] == (0, 0)
    waiting[0].settle(ResponseCode.SUCCESS)
    (answer,) = peer.answers
    assert answer.code == ResponseCode.SUCCESS
    assert pops.desk.broker.offsets.get(GROUP, "T", 0) == 1
    assert engine.marks()[revive_queue] == (0, 1)


async def test_a_reset_while_a_lease_is_being_stored(pops: PopDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reset counts, not the offset that the older pop would commit."""
    for body in (b"a", b"b"):
        await pops.desk.sent(body=body)
    await pops.pop(max_msg_nums=1)
    with monkeypatch.context() as slowly:
        waiting = slow_appends(pops, slowly)
        assert await pops.desk.outcome(pops.pop_request(), FakePeer()) is None
    pops.desk.broker.offsets.reset(GROUP, "T", 0, 0)
    waiting[0].settle(ResponseCode.SUCCESS)
    assert pops.desk.broker.offsets.get(GROUP, "T", 0) == 0
    assert bodies(await pops.pop()) == [b"a", b"b"]


async def test_idle_queues_are_forgotten(pops: PopDesk) -> None:
    """Those without leases, when many are known; their offsets are kept, and those with leases stay."""
    engine = engine_of(pops)
    await pops.desk.sent(body=b"a")
    (message,) = await pops.pop()
    engine.forget_idle(0)
    assert list(engine.leases.queues) == [KEY]
    await pops.acked(message)
    engine.forget_idle(0)
    assert not engine.leases.queues
    assert await pops.pop() == []
    await pops.pass_time(2 * LEASE_MS)
    assert await pops.pop() == []


async def test_the_records_of_a_group_are_in_one_queue(pops: PopDesk) -> None:
    """An answer names one, whatever queues its messages are from; groups are spread over all."""
    engine = engine_of(pops)
    assert {engine.revive_queue(f"g{number}") for number in range(100)} == set(range(engine.queues))


def test_what_waits_for_leases_waits_for_no_queue() -> None:
    """No topic has such a name."""
    names = {waiting_key("g", "T", queue_id, pops=pops) for queue_id in (-1, 0) for pops in (True, False)}
    assert len(names) == 4
    assert all("@" in name and number >= 0 for name, number in names)
