"""NOTIFICATION and POLLING_INFO."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from rmqkit.testing.peer import FakePeer
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, PopDesk


def notification(**fields: Any) -> Command:
    given: dict[str, Any] = {"consumer_group": GROUP, "topic": "T", "queue_id": -1, "poll_time": 0} | fields
    return request(RequestCode.NOTIFICATION, NotificationRequestHeader(**given), opaque=7)


async def has_message(pops: PopDesk, **fields: Any) -> bool:
    answer = await pops.ask(notification(**fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.header(NotificationResponseHeader).has_msg


async def waiting(pops: PopDesk, queue_id: int = -1) -> int:
    header = PollingInfoRequestHeader(consumer_group=GROUP, topic="T", queue_id=queue_id)
    answer = await pops.ask(request(RequestCode.POLLING_INFO, header, opaque=7))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.header(PollingInfoResponseHeader).polling_num


async def test_it_says_whether_a_pop_would_find_messages(pops: PopDesk) -> None:
    """And takes none; in any queue, or in one, and after a lease in the retry topic."""
    assert not await has_message(pops)
    await pops.desk.sent(body=b"a", queue_id=2)
    assert await has_message(pops)
    assert await has_message(pops, queue_id=2)
    assert not await has_message(pops, queue_id=1)
    assert len(await pops.pop()) == 1
    assert not await has_message(pops)
    await pops.pass_time(LEASE_MS + 100)
    assert await has_message(pops)


async def test_an_ordered_queue_has_none_while_it_waits(pops: PopDesk) -> None:
    """Until what is leased is finished."""
    for body in (b"a", b"b"):
        await pops.desk.sent(body=body)
    assert await has_message(pops, order=True)
    (first,) = await pops.pop(order=True, max_msg_nums=1)
    assert not await has_message(pops, order=True, queue_id=0)
    await pops.acked(first)
    assert await has_message(pops, order=True, queue_id=0)


@pytest.mark.row("S068")
async def test_it_waits_for_a_message(pops: PopDesk) -> None:
    """And is answered at its deadline without one."""
    peer, late = FakePeer(), FakePeer(port=40_001)
    assert await pops.desk.outcome(notification(poll_time=10_000), peer) is None
    await pops.desk.sent(body=b"a")
    pops.desk.broker.work.finish()
    assert peer.answers[0].header(NotificationResponseHeader).has_msg
    await pops.pop()
    assert await pops.desk.outcome(notification(poll_time=10_000), late) is None
    pops.desk.clock.advance(10_000)
    pops.desk.expire_pulls(pops.desk.clock.now_ms())
    assert not late.answers[0].header(NotificationResponseHeader).has_msg


async def test_the_number_of_waiting_pops(pops: PopDesk) -> None:
    """By queue as the pops named it; notifications are none."""
    assert await waiting(pops) == 0
    for queue_id in (-1, -1, 2):
        await pops.desk.outcome(pops.pop_request(queue_id=queue_id, poll_time=10_000), FakePeer())
    await pops.desk.outcome(notification(poll_time=10_000), FakePeer())
    assert [await waiting(pops, queue_id) for queue_id in (-1, 2, 0)] == [2, 1, 0]
    pops.desk.clock.advance(10_000)
    pops.desk.expire_pulls(pops.desk.clock.now_ms())
    assert await waiting(pops) == 0


async def test_what_does_not_exist_is_refused(pops: PopDesk) -> None:
    """With the codes of a pop."""
    missing = await pops.ask(notification(topic="missing"))
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
    wrong = await pops.ask(notification(queue_id=7))
    assert wrong.code == ResponseCode.INVALID_PARAMETER
