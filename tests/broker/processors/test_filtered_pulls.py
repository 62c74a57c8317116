"""Pulls with filters that need the records: SQL92 subscriptions, and long scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.broker.pulling import filtered_reads
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.limits import FILTERED_BYTES, MAX_FILTERED_RECORDS
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import ConsumerData, SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import ReadResult
from rmqkit.protocol import loose_json, record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit.toolkit import held_time
from rmqkit_filter.index.filters import GroupFilters
from tests.broker.desk import BrokerHarness, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]
SUSPEND, SUBSCRIPTION = 2, 4
ON = {"enablePropertyFilter": True}


def subscribed(expression: str, version: int = 1, topic: str = "T", kind: str = "SQL92") -> ConsumerData:
    found = SubscriptionData(topic=topic, sub_string=expression, expression_type=kind, sub_version=version)
    return ConsumerData(group_name="g", subscription_data_set=[found])


async def answered(desk: BrokerHarness, **fields: Any) -> Command:
    """The answer to a pull, which may be given by a task."""
    peer = FakePeer()
    answer = await desk.outcome(desk.pull_request(**fields), peer)
    if answer is None:
        await peer.all_answered()
        (answer,) = peer.answers
    return answer


def sql(expression: str) -> dict[str, Any]:
    return {"sys_flag": SUBSCRIPTION, "subscription": expression, "expression_type": "SQL92"}


@pytest.mark.row("S059")
async def test_the_expression_of_a_heartbeat_filters_by_properties(opened: Opened) -> None:
    """The broker keeps the filter of the group, and gives it the messages that match."""
    async with opened(**ON) as desk:
        for price in range(6):
            await desk.sent(body=b"%d" % price, properties={"price": str(price)})
        assert (await desk.heartbeat(subscribed("price > 3"))).code == 0
        answer = await answered(desk, sys_flag=0, sub_version=1)
        assert (bodies(answer), answer.code) == ([b"4", b"5"], 0)
        assert places(answer) == (6, 0, 6)
        assert isinstance(desk.broker.filters.index, GroupFilters)
        data = desk.broker.filters.index.get("T", "g")
        assert data is not None
        assert (data.expression, data.expression_type, data.is_dead) == ("price > 3", "SQL92", False)


@pytest.mark.row("S059")
async def test_refusals_have_the_codes_and_remarks_of_apache(opened: Opened) -> None:
    async with opened(**ON) as desk:
        await desk.sent()
        await desk.heartbeat(subscribed("price >", version=5))
        answer = await answered(desk, sys_flag=0, sub_version=5)
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert answer.remark == "The broker's consumer filter data is not exist!Your expression may be wrong!"
        await desk.heartbeat(subscribed("price > 1", version=6))
        assert (await answered(desk, sys_flag=0, sub_version=7)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert (await answered(desk, sys_flag=0, sub_version=6)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        answer = await answered(desk, **sql("price >"))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "Invalid MessageSelector. the end at position 7" in (answer.remark or "")
    async with opened() as desk:
        await desk.sent()
        for fields in (sql("price > 1"), {"sys_flag": 0, "sub_version": 5}):
            await desk.heartbeat(subscribed("price > 1", version=5))
            answer = await answered(desk, **fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "The broker does not support consumer to filter message by SQL92 (enablePropertyFilter)"
            )


@pytest.mark.row("S120")
@pytest.mark.parametrize(
    ("expression", "code", "remark"),
    [
        ("price > 1", 0, ""),
        ("price > 'x'", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "Invalid MessageSelector. "),
        ("(" * 10_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "deeper than 100"),
        ("a" * 1_000_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "at most 16384"),
    ],
    ids=["good", "types", "deep", "long"],
)
async def test_a_client_checks_its_expression_at_the_start(
    opened: Opened, expression: str, code: int, remark: str
) -> None:
    subscription = {"topic": "T", "subString": expression, "expressionType": "SQL92"}
    body = loose_json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription})
    async with opened(**ON) as desk:
        answer = await desk.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        assert answer.code == code
        assert remark in (answer.remark or "")


async def test_a_long_queue_is_scanned_in_windows(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that matches nothing passes over many windows and then says where it has come to; one match ends
    the scan."""
    monkeypatch.setattr(filtered_reads, "MAX_FILTER_SCANS", 4)
    async with opened(**ON, maxFilterMessageSize=20 * 50) as desk:
        for number in range(500):
            await desk.sent(properties={"number": str(number)})
        answer = await answered(desk, **sql("number > 1000"))
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert 200 <= places(answer)[0] < 500
        answer = await answered(desk, **sql("number = 150"))
        assert answer.code == 0
        assert 151 <= places(answer)[0] < 500


async def test_the_limits_of_a_pull_hold_for_what_matches(opened: Opened) -> None:
    """The next pull continues behind the last message of the answer."""
    async with opened(**ON) as desk:
        for number in range(100):
            await desk.sent(body=b"%d" % number, properties={"number": str(number)})
        found: list[bytes] = []
        offset = 0
        while offset < 100:
            answer = await answered(desk, **sql("number > 9"), offset=offset, max_msg_nums=7)
            assert answer.code == 0
            assert len(bodies(answer)) <= 7
            found += bodies(answer)
            offset = places(answer)[0]
        assert found == [b"%d" % number for number in range(10, 100)]
        answer = await answered(desk, **sql("number > 9"), max_msg_bytes=500)
        assert 0 < len(answer.body) <= 500


async def test_a_pull_that_rejects_all_up_to_the_end_is_held(opened: Opened) -> None:
    """From behind the rejected messages on; only a message that matches answers it, and others are filtered
    once."""
    peer = FakePeer()
    fields = {**sql("price = 5"), "sys_flag": SUSPEND | SUBSCRIPTION, "suspend_timeout_millis": 15_000}
    async with opened(**ON) as desk:
        for _ in range(3):
            await desk.sent(properties={"price": "4"})
        assert await desk.outcome(desk.pull_request(**fields), peer) is None
        for _ in range(200):
            await desk.sent(properties={"price": "4"})
        assert (peer.answers, len(desk.broker.held)) == ([], 1)
        await desk.sent(body=b"mine", properties={"price": "5"})
        (answer,) = peer.answers
        assert (bodies(answer), places(answer)) == ([b"mine"], (204, 0, 204))


async def test_a_held_pull_passes_over_many_messages_in_slices(opened: Opened) -> None:
    """What has arrived at once is scanned window by window, and the match at its end is found."""
    peer = FakePeer()
    fields = {**sql("price = 5"), "sys_flag": SUSPEND | SUBSCRIPTION, "suspend_timeout_millis": 15_000}
    async with opened(**ON) as desk:
        assert await desk.outcome(desk.pull_request(**fields), peer) is None
        work, desk.broker.work.finish = desk.broker.work.finish, lambda: None  # type: ignore[method-assign]
        for _ in range(10 * MAX_FILTERED_RECORDS):
            await desk.sent(properties={"price": "4"})
        await desk.sent(body=b"mine", properties={"price": "5"})
        assert peer.answers == []
        work()
        (answer,) = peer.answers
        assert bodies(answer) == [b"mine"]


class SlowFilter(FilterServer):
    """Expression type SLOW: an asynchronous filter by the body; it waits until `open` is set. The expression
    `fail` refuses."""

    expression_type = "SLOW"

    def __init__(self) -> None:
        self.open, self.called = trio.Event(), trio.Event()
        self.calls: list[tuple[str, str, int]] = []

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        async def matches(records: Sequence[Buffer]) -> list[bool]:
            self.calls.append((subscription.topic, group, len(records)))
            self.called.set()
            await self.open.wait()
            if subscription.sub_string == "fail":
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the filter is off")
            return [record.unpack(each).body == subscription.sub_string.encode() for each in records]

        return CompiledFilter(records_async=matches)

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        return SubscriptionData(topic=topic, sub_string=expression, expression_type="SLOW")

    @hookimpl
    def rmqkit_register_filter_servers(self, register: Register[FilterServer], config: Config) -> None:
        register("SLOW", self)


def slow(expression: str, flags: int = SUBSCRIPTION) -> dict[str, Any]:
    return {
        "sys_flag": flags,
        "subscription": expression,
        "expression_type": "SLOW",
        "suspend_timeout_millis": 15_000,
    }


async def test_an_asynchronous_filter_knows_topic_and_group(opened: Opened) -> None:
    """Other requests are served while it works."""
    server = SlowFilter()
    answers: list[Command] = []
    async with opened(extra=[("slow", server)]) as desk:
        for body in (b"a", b"b"):
            await desk.sent(body=body)

        async def pull() -> None:
            answers.append(await answered(desk, **slow("b")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await server.called.wait()
            await desk.sent(body=b"c")
            assert answers == []
            server.open.set()
        assert bodies(answers[0]) == [b"b"]
        assert {call[:2] for call in server.calls} == {("T", "g")}


async def test_an_asynchronous_filter_holds_and_is_woken(opened: Opened) -> None:
    """A message that it rejects leaves the pull held."""
    server, peer = SlowFilter(), FakePeer()
    server.open.set()
    async with opened(extra=[("slow", server)]) as desk:
        await desk.sent(body=b"a")
        assert await desk.outcome(desk.pull_request(**slow("b", SUSPEND | SUBSCRIPTION)), peer) is None
        await peer.all_answered()
        for _ in range(3):
            await desk.sent(body=b"c")
            await peer.all_answered()
            assert (peer.answers, len(desk.broker.held)) == ([], 1)
        await desk.sent(body=b"b")
        await peer.all_answered()
        assert bodies(peer.answers[0]) == [b"b"]


async def test_a_filter_that_refuses_tells_the_consumer(opened: Opened) -> None:
    server = SlowFilter()
    server.open.set()
    async with opened(extra=[("slow", server)]) as desk:
        await desk.sent(body=b"a")
        answer = await answered(desk, **slow("fail"))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the filter is off")


@pytest.mark.parametrize("support", [True, False])
async def test_retried_messages_are_filtered_as_their_topic_on_request(opened: Opened, support: bool) -> None:
    """With filterSupportRetry the group's filter for the original topic counts, else the subscription's own
    expression."""
    async with opened(**ON, filterSupportRetry=support) as desk:
        await desk.sent()
        both = subscribed("price > 3")
        retry = SubscriptionData(
            topic="%RETRY%g", sub_string="price < 9", expression_type="SQL92", sub_version=1
        )
        both.subscription_data_set = [*(both.subscription_data_set or ()), retry]
        await desk.heartbeat(both)
        for topic, price in (("T", "1"), ("T", "5"), ("T", "10"), ("Other", "10")):
            properties = {"RETRY_TOPIC": topic, "price": price}
            await desk.sent("%RETRY%g", body=f"{topic}{price}".encode(), properties=properties)
        answer = await answered(desk, topic="%RETRY%g", sys_flag=0, sub_version=1)
        expected = [b"T5", b"T10", b"Other10"] if support else [b"T1", b"T5"]
        assert bodies(answer) == expected


class Timed(SlowFilter):
    """Expression type SLOW: takes `cost_s` of a made clock for each record."""

    def __init__(self, per_call: int, cost_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._per_call, self._cost_s = per_call, cost_s
        self.between: list[tuple[int, int]] = []

    def clock(self) -> float:
        return self.now_s

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        def matches(records: Sequence[Buffer]) -> list[bool]:
            self.now_s += self._cost_s * len(records)
            self.between.append((len(records), sum(map(len, records))))
            return [record.unpack(each).body.startswith(b"mine") for each in records]

        return CompiledFilter(records=matches, records_per_call=self._per_call)


@pytest.mark.parametrize(("per_call", "body_bytes"), [(1, 10), (4, 10), (16, 10), (16, 40_000)])
async def test_a_slow_filter_is_bounded_within_a_window(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, per_call: int, body_bytes: int
) -> None:
    """When the time of a window has passed, the rest of its records is filtered later, and none is filtered
    twice or left out."""
    server = Timed(per_call, 0.0005)
    monkeypatch.setattr(held_time, "thread_time", server.clock)
    monkeypatch.setattr(held_time, "perf_counter", server.clock)
    async with opened(extra=[("timed", server)]) as desk:
        for number in range(100):
            await desk.sent(body=(b"mine" if number == 90 else b"else").ljust(body_bytes, b"."))
        answer = await answered(desk, **slow("x"))
        assert [body[:4] for body in bodies(answer)] == [b"mine"]
        assert places(answer)[0] == 100
    assert sum(count for count, _ in server.between) == 100
    assert all(count <= per_call for count, _ in server.between)
    assert all(count == 1 or size <= FILTERED_BYTES for count, size in server.between)


class Nothing(SlowFilter):
    """Expression type SLOW: rejects every unit, so that no record is read."""

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        return CompiledFilter(unit=lambda tags_code: False, records=lambda records: [False] * len(records))


async def test_the_first_stage_works_in_windows(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that rejects all units does not look at all that maxFilterMessageSize allows in one step."""
    monkeypatch.setattr(filtered_reads, "_WINDOW_UNITS", 50)
    scanned: list[int] = []
    async with opened(extra=[("nothing", Nothing())], maxFilterMessageSize=20 * 1_000) as desk:
        for _ in range(120):
            await desk.sent()
        read = desk.broker.store.read

        def watched(*arguments: Any) -> ReadResult:
            result = read(*arguments)
            scanned.append(result.next_offset - arguments[2])
            return result

        monkeypatch.setattr(desk.broker.store, "read", watched)
        assert places(await answered(desk, **slow("x")))[0] == 120
    assert scanned == [50, 50, 20]


class Sleeping(SlowFilter):
    """Expression type SLOW: sleeps in the event loop, 2 ms for each record, by a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleeps(self) -> int:
        """How often it has slept."""
        return len(self.counts)

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        def matches(records: Sequence[Buffer]) -> list[bool]:
            self.counts.append(len(records))
            self.now_s += 0.002 * len(records)
            return [False] * len(records)

        return CompiledFilter(records=matches)


async def test_a_filter_that_sleeps_gets_fewer_records(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses no processor time, and holds the event loop all the same."""
    server = Sleeping()
    monkeypatch.setattr(held_time, "perf_counter", server.clock)
    monkeypatch.setattr(held_time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(held_time, "switches", server.sleeps)
    async with opened(extra=[("sleeping", server)]) as desk:
        for _ in range(40):
            await desk.sent()
        answer = await answered(desk, **slow("x"))
        assert places(answer)[0] == 40
    assert server.counts == [16, 8, 4, 2, *[1] * 10]


async def test_a_pull_that_has_its_messages_filters_no_more(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred messages that match, a pull of eight filters one call's; the next goes on behind the
    eighth."""
    server = Timed(4, 0.0)
    monkeypatch.setattr(held_time, "thread_time", server.clock)
    monkeypatch.setattr(held_time, "perf_counter", server.clock)
    async with opened(extra=[("timed", server)]) as desk:
        for number in range(100):
            await desk.sent(body=b"mine%d" % number)
        for start in (0, 8, 16):
            server.between.clear()
            answer = await answered(desk, **slow("x"), offset=start, max_msg_nums=8)
            assert bodies(answer) == [b"mine%d" % number for number in range(start, start + 8)]
            assert places(answer)[0] == start + 8
            assert [count for count, _ in server.between] == [4, 4]


class EverySecond(SlowFilter):
    """Expression type SLOW: matches every second record, when `is_rare` every tenth, and notes how many it
    gets."""

    is_rare = False

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        async def matches(records: Sequence[Buffer]) -> list[bool]:
            self.calls.append((subscription.topic, group, len(records)))
            step = 10 if self.is_rare else 2
            return [record.unpack(each).queue_offset % step == 0 for each in records]

        return CompiledFilter(records_async=matches, records_at_once=256)


async def test_a_read_takes_as_many_records_as_the_reads_before_it_needed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of messages of which every second one matches, the filter gets hardly more than twice as many as are
    wanted, in one window."""
    monkeypatch.setattr(filtered_reads, "perf_counter", lambda: 0.0)
    server = EverySecond()
    async with opened(extra=[("seconds", server)]) as desk:
        for number in range(1200):
            await desk.sent(body=b"%d" % number)
        for start in range(0, 1200, 64):
            server.calls.clear()
            answer = await answered(desk, **slow("x"), offset=start, max_msg_nums=32)
            if start + 64 <= 1200:
                assert places(answer)[0] == start + 63
        server.calls.clear()
        for start in range(0, 1024, 64):
            await answered(desk, **slow("x"), offset=start, max_msg_nums=32)
    windows = [count for _, _, count in server.calls]
    assert len(windows) == 16
    assert all(64 <= count <= 100 for count in windows)


async def test_a_read_takes_more_records_after_one_that_needed_more(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read has as many in its first window."""
    monkeypatch.setattr(filtered_reads, "perf_counter", lambda: 0.0)
    server = EverySecond()
    async with opened(extra=[("seconds", server)]) as desk:
        for number in range(600):
            await desk.sent(body=b"%d" % number)
        for start in range(0, 600, 12):
            await answered(desk, **slow("x"), offset=start, max_msg_nums=6)
        server.is_rare = True
        server.calls.clear()
        for start in (0, 60):
            await answered(desk, **slow("x"), offset=start, max_msg_nums=6)
    assert [count for _, _, count in server.calls][-1] >= 51
