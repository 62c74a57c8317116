"""Message queries."""

from __future__ import annotations

import pytest

from rmqkit.broker.processors import query as module
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rmqkit.protocol.message_id import parse_offset_message_id
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness, bodies


async def query(desk: BrokerHarness, key: str, *, topic: str = "T", **fields: int | bool) -> Command:
    header = QueryMessageRequestHeader(topic=topic, key=key)
    for name, value in fields.items():
        setattr(header, name, value)
    return await desk.ask(RequestCode.QUERY_MESSAGE, header)


async def view(desk: BrokerHarness, offset: int) -> Command:
    return await desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))


@pytest.mark.row("S010", "S022", "S051", "S052")
async def test_messages_are_found_by_key_unique_key_and_id(desk: BrokerHarness) -> None:
    """A message is found by every key of KEYS, by the unique key, and by the offset in its id."""
    got = await desk.sent(body=b"1", properties={"KEYS": "k1 k2", "UNIQ_KEY": "U1"})
    await desk.sent(body=b"2", properties={"KEYS": "k2", "UNIQ_KEY": "U2"})
    assert bodies(await query(desk, "k1")) == [b"1"]
    assert bodies(await query(desk, "k2")) == [b"1", b"2"]
    assert bodies(await query(desk, "U2", unique_key_query=True)) == [b"2"]
    answer = await view(desk, parse_offset_message_id(got.msg_id)[2])
    assert (answer.code, bodies(answer)) == (0, [b"1"])


async def test_the_answer_says_how_far_the_index_has_come(desk: BrokerHarness) -> None:
    """The answer has time and offset of the last indexed message."""
    await desk.sent(properties={"KEYS": "k"})
    await desk.sent(properties={"KEYS": "k"})
    header = (await query(desk, "k")).header(QueryMessageResponseHeader)
    assert header.index_last_update_timestamp == desk.clock.now_ms()
    assert header.index_last_update_phyoffset == desk.stored()[1].physical_offset


@pytest.mark.row("S010")
async def test_the_time_window_and_the_count_limit_a_query(desk: BrokerHarness) -> None:
    """Both times are inclusive; the newest messages are returned, at most 64, 32 with the unique flag, none
    for a count below one."""
    began = desk.clock.now_ms()
    for number in range(70):
        await desk.sent(body=b"%d" % number, properties={"KEYS": "k"})
        desk.clock.advance(1_000)
    assert bodies(await query(desk, "k", begin_timestamp=began + 1_000, end_timestamp=began + 3_000)) == [
        b"1",
        b"2",
        b"3",
    ]
    assert bodies(await query(desk, "k", max_num=2)) == [b"68", b"69"]
    assert len(bodies(await query(desk, "k", max_num=2**31 - 1))) == 64
    assert len(bodies(await query(desk, "k", max_num=1, unique_key_query=True))) == 32
    for count in (0, -1):
        assert (await query(desk, "k", max_num=count)).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(("topic", "key"), [("T", "other"), ("Nothing", "k"), ("T", ""), ("../x", "../y")])
async def test_nothing_found(desk: BrokerHarness, topic: str, key: str) -> None:
    """The answer is QUERY_NOT_FOUND, whatever the names."""
    await desk.sent(properties={"KEYS": "k"})
    assert (await query(desk, key, topic=topic)).code == ResponseCode.QUERY_NOT_FOUND


async def test_an_answer_keeps_within_a_frame(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages beyond the limit are left out of the answer."""
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 2_000)
    for _ in range(5):
        await desk.sent(body=bytes(700), properties={"KEYS": "k"})
    assert len(bodies(await query(desk, "k"))) == 2


@pytest.mark.row("S022")
@pytest.mark.parametrize("offset", [-1, 1, 10**12, 2**63 - 1])
async def test_an_id_where_no_message_begins(desk: BrokerHarness, offset: int) -> None:
    """The answer is SYSTEM_ERROR, as in Java."""
    await desk.sent()
    assert (await view(desk, offset)).code == ResponseCode.SYSTEM_ERROR


async def by_tag(desk: BrokerHarness, tag: str, **fields: int | str) -> Command:
    header = QueryMessageRequestHeader(topic="T", key=tag, index_type="T")
    for name, value in fields.items():
        setattr(header, name, value)
    peer = FakePeer()
    answer = await desk.outcome(request(RequestCode.QUERY_MESSAGE, header, opaque=7), peer)
    if answer is None:
        await peer.all_answered()
        (answer,) = peer.answers
    return answer


async def test_messages_are_found_by_tag(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of the type T gets the newest messages with that tag, not those with the key of that name or a
    tag of equal hash, in the order of the log, whatever the number of units in a turn; times and counts limit
    it."""
    monkeypatch.setattr(module, "SEARCHED_UNITS_PER_TURN", 3)
    began = desk.clock.now_ms()
    for number in range(20):
        tag = ("Aa", "BB", "other", "Aa")[number % 4]
        await desk.sent(
            body=b"%d" % number, queue_id=number % 3, properties={"TAGS": tag, "KEYS": "other Aa"}
        )
        desk.clock.advance(1_000)
    assert bodies(await by_tag(desk, "BB")) == [b"1", b"5", b"9", b"13", b"17"]
    assert bodies(await by_tag(desk, "Aa", max_num=3)) == [b"15", b"16", b"19"]
    assert bodies(await by_tag(desk, "other", end_timestamp=began + 7_000)) == [b"2", b"6"]
    assert bodies(await by_tag(desk, "other", begin_timestamp=began + 7_000, max_num=2)) == [b"14", b"18"]
    missing = await by_tag(desk, "none")
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert "with the tag 'none'" in (missing.remark or "")
    assert (await by_tag(desk, "Aa", topic="missing")).code == ResponseCode.QUERY_NOT_FOUND
    assert (await by_tag(desk, "Aa", max_num=0)).code == ResponseCode.QUERY_NOT_FOUND
    key = QueryMessageRequestHeader(topic="T", key="Aa", index_type="K", max_num=64)
    assert len(bodies(await desk.ask(RequestCode.QUERY_MESSAGE, key))) == 20


async def test_a_search_for_a_tag_ends(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many of the newest units are searched, and the remark says so."""
    monkeypatch.setattr(module, "SEARCHED_UNITS_PER_TURN", 2)
    monkeypatch.setattr(module, "MAX_SEARCHED_UNITS", 4)
    for number in range(9):
        await desk.sent(properties={"TAGS": "old" if number < 4 else "new"})
    missing = await by_tag(desk, "old")
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert "among the newest 4 of the topic" in (missing.remark or "")
