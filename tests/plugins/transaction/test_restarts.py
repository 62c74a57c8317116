"""What a broker finds out at its start: transactions that have ended stay ended, whatever was not written
when it died, and the others are open."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.plugins.transaction.conftest import Opened
from tests.plugins.transaction.kit import COMMIT, OLD_MS, ROLLBACK, Producer, Sent


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.row("S253")
async def test_a_restart(over_each_disk: Opened, graceful: bool) -> None:
    """Committed transactions stay committed, and open ones can be ended as before."""
    async with over_each_disk(graceful=graceful) as producer:
        first, second, third = [await producer.half(b"%d" % number, f"K{number}") for number in range(3)]
        await producer.ended(first)
        await producer.ended(third)
    async with over_each_disk() as producer:
        assert producer.open_count == 1
        assert "has ended" in ((await producer.end(first)).remark or "")
        assert [each.header.msg_id for each in await producer.questions()] == ["K1"]
        await producer.ended(second)
        assert producer.delivered() == [b"0", b"2", b"1"]


async def test_the_same_id_sent_twice_is_two_transactions(over_each_disk: Opened) -> None:
    """As a producer does that got no answer to the first: each has its own outcome."""
    async with over_each_disk(graceful=False) as producer:
        first, second = await producer.half(b"1"), await producer.half(b"2")
    async with over_each_disk() as producer:
        assert producer.open_count == 2
        await producer.ended(second)
        await producer.ended(first, ROLLBACK)
        assert producer.delivered() == [b"2"]


@pytest.mark.parametrize("seed", range(20))
async def test_any_history_with_any_number_of_deaths(opened: Opened, seed: int) -> None:
    """Each message is delivered exactly as its transaction ended: once if its producer committed it, never
    otherwise."""
    random = Random(seed)
    outcomes: dict[str, int] = {}
    known: dict[str, list[Sent]] = {}
    ended: set[str] = set()
    for _ in range(6):
        async with opened(
            store="mmap", transactionCheckMax=1_000, graceful=random.random() < 0.3
        ) as producer:
            for _ in range(12):
                await _step(random, producer, outcomes, known, ended)
            if random.random() < 0.5:
                await producer.desk.broker.offsets.persist()
    async with opened(store="mmap", transactionCheckMax=1_000) as producer:
        for question in await producer.questions(60_000):
            key = question.header.msg_id or ""
            await producer.ended(question.sent, outcomes[key], from_transaction_check=True)
        delivered = sorted(body.decode() for body in producer.delivered())
        assert delivered == sorted(key for key, kind in outcomes.items() if kind == COMMIT)
        assert producer.open_count == 0


async def _step(
    random: Random,
    producer: Producer,
    outcomes: dict[str, int],
    known: dict[str, list[Sent]],
    ended: set[str],
) -> None:
    """Send, end what is known by any of its places, or run a round whose questions are heard or lost."""
    step = random.random()
    if step < 0.5 or not known:
        key = f"K{len(known)}"
        immunity: dict[str, Any] = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "20"} if random.random() < 0.3 else {}
        known[key] = [await producer.half(key.encode(), key, **immunity)]
        outcomes[key] = random.choice((COMMIT, ROLLBACK))
    elif step < 0.8:
        key = random.choice(sorted(known))
        answer = await producer.end(random.choice(known[key]), outcomes[key], from_transaction_check=True)
        assert answer.code in (0, 1)
        if answer.code == 0 and outcomes[key] == COMMIT:
            assert key not in ended, "it was committed twice"
            ended.add(key)
    else:
        for question in await producer.questions(random.choice((1, OLD_MS, 30_000))):
            if random.random() < 0.7:
                known[question.header.msg_id or ""].append(question.sent)
