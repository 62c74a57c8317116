"""Rounds of questions: when a half message is asked for, how often, and what becomes of it in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.model import names
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.testing.peer import FakePeer
from tests.plugins.transaction.conftest import Opened
from tests.plugins.transaction.kit import GROUP, OLD_MS, producing

HOUR_MS = 3_600_000


@pytest.mark.row("S155")
@pytest.mark.parametrize(("age_ms", "asked"), [(0, 0), (5_999, 0), (6_000, 0), (6_001, 1)])
async def test_a_young_half_message_is_left_alone(opened: Opened, age_ms: int, asked: int) -> None:
    """Up to `transactionTimeOut`, by default six seconds after its birth."""
    async with opened() as producer:
        await producer.half()
        assert len(await producer.questions(age_ms)) == asked


async def test_a_half_message_is_asked_for_a_limited_number_of_times(opened: Opened) -> None:
    """Once in a round, `transactionCheckMax` times; then it is moved to TRANS_CHECK_MAX_TIME_TOPIC, and its
    transaction has ended."""
    async with opened(transactionCheckMax=3) as producer:
        sent = await producer.half(b"order", TAGS="A")
        asked = [await producer.questions(30_000) for _ in range(6)]
        assert [len(each) for each in asked] == [1, 1, 1, 0, 0, 0]
        (given_up,) = producer.desk.stored(names.CHECK_MAX_TIME_TOPIC)
        assert (given_up.body, given_up.properties["REAL_TOPIC"]) == (b"order", "T")
        for late in (sent, asked[0][0].sent, asked[2][0].sent):
            answer = await producer.end(late, from_transaction_check=True)
            assert (answer.code, "has ended" in (answer.remark or "")) == (1, True)
        assert producer.delivered() == []
        figures = producer.service.figures()
        assert (figures["transactionsOpen"], figures["transactionsGivenUp"]) == (0, 1)


async def test_a_half_message_older_than_the_log_keeps_is_given_up(opened: Opened) -> None:
    """`fileReservedTime` after its birth, however rarely it was asked for."""
    async with opened(fileReservedTime=5) as producer:
        await producer.half()
        assert len(await producer.questions(5 * HOUR_MS)) == 1
        assert len(await producer.questions(1)) == 0
        assert len(producer.desk.stored(names.CHECK_MAX_TIME_TOPIC)) == 1


@pytest.mark.parametrize(
    ("seconds", "age_ms", "asked"),
    [
        ("60", 60_000, 0),
        ("60", 60_001, 1),
        ("-1", 6_000, 0),
        ("-1", 6_001, 1),
        ("x", 6_000, 0),
        ("x", 6_001, 1),
        ("0", 1, 1),
        ("-5", 1, 1),
        ("9223372036854775807", 3 * HOUR_MS, 0),
        ("99999999999999999999", 6_001, 1),
    ],
)
async def test_an_immune_half_message(opened: Opened, seconds: str, age_ms: int, asked: int) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS takes the place of the setting."""
    async with opened() as producer:
        await producer.half(CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        producer.desk.clock.advance(1)
        assert len(await producer.questions(age_ms - 1)) == asked


async def test_a_clock_that_was_set_back_stops_nothing(opened: Opened) -> None:
    """Half messages that were stored at a later time than it is now are asked for."""
    async with opened() as producer:
        await producer.half()
        assert len(await producer.questions(-HOUR_MS)) == 1
        assert len(await producer.questions(1)) == 1


@pytest.mark.row("S156")
async def test_questions_go_to_the_producers_of_the_group_in_turn(opened: Opened) -> None:
    """Not to those of another group, and not over a connection that has ended."""
    async with opened() as producer:
        desk, second, gone, other = producer.desk, FakePeer(), FakePeer(), FakePeer()
        await desk.heartbeat(producers=[GROUP], client_id="c2", peer=second)
        await desk.heartbeat(producers=[GROUP], client_id="c3", peer=gone)
        await desk.heartbeat(producers=["others"], client_id="c4", peer=other)
        gone.close()
        for number in range(12):
            await producer.half(key=f"K{number}")
        asked = len(await producer.questions())
        assert (asked + len(second.pushed), len(gone.pushed), len(other.pushed)) == (12, 0, 0)
        assert min(asked, len(second.pushed)) >= 4


async def test_a_group_without_a_producer_is_asked_in_a_later_round(opened: Opened) -> None:
    """The round counts as one; the broker goes on with the next half message."""
    async with opened() as producer:
        await producer.half(key="lonely", group="nobody")
        await producer.half(key="K")
        assert [each.header.msg_id for each in await producer.questions()] == ["K"]
        assert producer.service.figures()["transactionsUnheard"] == 1
        peer = FakePeer()
        await producer.desk.heartbeat(producers=["nobody"], client_id="c2", peer=peer)
        await producer.questions()
        assert len(peer.pushed) == 1


async def test_the_body_of_a_question_stays_compressed(opened: Opened) -> None:
    """The system flag says so, and the client decompresses it."""
    async with opened() as producer:
        await producer.desk.sent(
            body=b"packed",
            sys_flag=COMPRESSED,
            born_timestamp=producer.desk.clock.now_ms(),
            properties={"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K"},
        )
        (question,) = await producer.questions()
        assert (question.message.body, question.message.sys_flag) == (b"packed", COMPRESSED)


async def test_more_half_messages_than_a_round_reads_together(opened: Opened) -> None:
    """All that are due are asked for, each once."""
    async with opened() as producer:
        for number in range(200):
            await producer.half(key=f"K{number}")
        asked = [each.header.msg_id for each in await producer.questions()]
        assert asked == [f"K{number}" for number in range(200)]


async def test_the_interval_is_a_setting(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    """`transactionCheckInterval`, by default 30 seconds, counts from the start."""
    settings: list[tuple[int, dict[str, Any]]] = [(30_000, {}), (5_000, {"transactionCheckInterval": 5_000})]
    for interval_ms, keys in settings:
        async with producing(tmp_path / str(interval_ms), store="memory", **keys) as producer:
            await producer.half()
            producer.desk.clock.advance(OLD_MS)
            await trio.sleep(interval_ms / 1000 - 1)
            assert producer.desk.peer.pushed == []
            await trio.sleep(2)
            assert len(producer.desk.peer.pushed) == 1
            producer.desk.clock.advance(1)
            await trio.sleep(interval_ms / 1000)
            assert len(producer.desk.peer.pushed) == 2
