"""Concurrent pulls of a simulated queue: every offset is delivered once, in order, whatever a broker returns
at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.decode.records import record_places
from pyspark_rocketmq.read.pull_windows import (
    MAX_FRUITLESS,
    PullLimits,
    PullWindow,
    PullWindows,
    blocks_of,
    pull_around,
    queue_offset,
)
from pyspark_rocketmq.read.source import Block, DataLoss, QueueRange, SourceError
from rmqkit.client import PullStatus, RawPull
from tests.spark.kit_records import QUEUE, packed, put


@define
class Queue:
    """Offsets [first, end), of which `kept` have a record that passes the filter; a broker returns at most
    `gives` at a time and scans `looks`."""

    first: int
    end: int
    gives: int = 32
    looks: int = 1000
    kept: frozenset[int] | None = None
    span: int = 1
    pulls: list[tuple[int, int]] = field(factory=list)
    under_way: int = 0
    most_under_way: int = 0

    async def pull(self, offset: int, records: int) -> RawPull:
        self.pulls.append((offset, records))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await trio.sleep(1)
        self.under_way -= 1
        if not self.first <= offset < self.end:
            moved = PullStatus.OFFSET_ILLEGAL if offset != self.end else PullStatus.NO_NEW_MESSAGE
            return RawPull(moved, b"", self.first, self.first, self.end)
        found: list[bytes] = []
        at = offset - offset % self.span
        while at < min(self.end, offset + self.looks) and len(found) < min(records, self.gives):
            if self.kept is None or at in self.kept:
                found.append(packed(put(b"%d" % at), at))
            at += self.span
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE
        return RawPull(status, b"".join(found), min(at, self.end), self.first, self.end)


async def read(
    queue: Queue,
    start: int,
    stop: int,
    *,
    first: int = 256,
    max_bytes: int = 1 << 20,
    dense: bool = True,
    takes: int = 1 << 30,
) -> list[Block]:
    windows = PullWindows(
        QueueRange(QUEUE, start, stop),
        queue.pull,
        PullLimits(under_way=8, max_records=1024),
        first,
        dense=dense,
    )
    found: list[Block] = []
    failure: SourceError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(windows.run)
        try:
            while takes and (taken := await windows.take(max_bytes)):
                takes -= 1
                found += blocks_of(QUEUE, taken)
        except SourceError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found


def offsets(blocks: list[Block]) -> list[int]:
    return [queue_offset(bytes(block.data), at) for block in blocks for at in block.starts.tolist()]


def in_no_time(function: Any, *args: Any, **kwargs: Any) -> Any:
    return trio.run(partial(function, *args, **kwargs), clock=trio.testing.MockClock(autojump_threshold=0))


@given(
    start=st.integers(0, 50),
    count=st.integers(0, 700),
    gives=st.integers(1, 200),
    first=st.integers(1, 300),
    max_bytes=st.sampled_from([1, 5000, 1 << 20]),
)
def test_every_offset_comes_once(start: int, count: int, gives: int, first: int, max_bytes: int) -> None:
    """Every offset is delivered once and in order, however few records a broker returns at a time."""
    queue = Queue(0, 1000, gives=gives)
    blocks = in_no_time(read, queue, start, start + count, first=first, max_bytes=max_bytes)
    assert offsets(blocks) == list(range(start, start + count))


@given(
    kept=st.frozensets(st.integers(0, 499), max_size=60),
    gives=st.integers(1, 20),
    looks=st.integers(1, 100),
    start=st.integers(0, 100),
    stop=st.integers(100, 500),
)
def test_filtered_offsets_are_passed_over(
    kept: frozenset[int], gives: int, looks: int, start: int, stop: int
) -> None:
    """Answers may be longer or shorter than predicted: overlaps are dropped, and "no matched message"
    continues to the end."""
    queue = Queue(0, 500, gives=gives, looks=looks, kept=kept)
    blocks = in_no_time(read, queue, start, stop, dense=False)
    assert offsets(blocks) == sorted(offset for offset in kept if start <= offset < stop)


@given(span=st.integers(2, 9), gives=st.integers(1, 12), first=st.integers(1, 40), start=st.integers(0, 30))
def test_inner_batches_come_once(span: int, gives: int, first: int, start: int) -> None:
    """A record of several offsets in two windows is delivered once; the first one may begin before the range,
    and the decoder cuts it."""
    queue = Queue(0, 240 // span * span, gives=gives, span=span)
    blocks = in_no_time(read, queue, start, queue.end, first=first)
    assert offsets(blocks) == list(range(start - start % span, queue.end, span))


def test_a_reader_that_stops_early_costs_little() -> None:
    """The first block has the requested size, and by then at most one further window is in progress."""
    queue = Queue(0, 1_000_000, gives=1024)
    blocks = in_no_time(read, queue, 0, queue.end, takes=1)
    assert offsets(blocks) == list(range(256))
    assert sum(records for _, records in queue.pulls) <= 256 + 3 * 1024


def test_many_pulls_are_under_way() -> None:
    """Up to eight windows are pulled at a time once reading continues, and never more."""
    queue = Queue(0, 20_000)
    in_no_time(read, queue, 0, 20_000, max_bytes=50_000)
    assert queue.most_under_way == 8


def test_the_size_of_answers_is_learnt() -> None:
    """If a broker returns 32 messages at a time, 32 are requested, and hardly any pull has to be repeated."""
    queue = Queue(0, 10_000)
    in_no_time(read, queue, 0, 10_000, max_bytes=50_000)
    assert len(queue.pulls) < 10_000 // 32 * 1.2


def test_expired_messages_are_a_loss() -> None:
    """The error contains the missing messages, the first remaining one, and a remedy."""
    with pytest.raises(DataLoss, match=r"messages \[5, 40\) no longer exist.*failOnDataLoss=false") as caught:
        in_no_time(read, Queue(40, 100), 5, 100)
    assert caught.value.first == 40


def test_a_queue_that_ends_early_is_a_loss() -> None:
    """When a topic was deleted and created again, the existing messages are delivered before the error."""
    queue = Queue(0, 60)
    windows = PullWindows(
        QueueRange(QUEUE, 0, 100), queue.pull, PullLimits(under_way=2, max_records=30), 30, dense=True
    )

    async def body() -> list[Block]:
        found: list[Block] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(windows.run)
            for _ in range(2):
                found += blocks_of(QUEUE, await windows.take(1))
            with pytest.raises(
                DataLoss, match="the queue ends at 60: the topic was deleted and created again"
            ) as caught:
                await windows.take(1)
            assert caught.value.first == 100
            nursery.cancel_scope.cancel()
        return found

    assert offsets(in_no_time(body)) == list(range(60))


def test_answers_that_lead_nowhere_end() -> None:
    """Pulling ends if a broker returns neither messages nor a later offset."""
    pulls = 0

    async def pull(offset: int, records: int) -> RawPull:
        nonlocal pulls
        pulls += 1
        return RawPull(PullStatus.NO_MATCHED_MESSAGE, b"", offset, 0, 100)

    async def body() -> None:
        windows = PullWindows(
            QueueRange(QUEUE, 0, 100), pull, PullLimits(under_way=1, max_records=10), 10, dense=True
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(windows.run)
            with pytest.raises(SourceError, match="returns nothing at offset 0"):
                await windows.take(1)
            nursery.cancel_scope.cancel()

    in_no_time(body)
    assert pulls == MAX_FRUITLESS + 1


@given(damaged=st.sets(st.integers(0, 79), max_size=6), gives=st.integers(1, 40), first=st.integers(1, 100))
def test_records_without_a_beginning_are_passed_over(damaged: set[int], gives: int, first: int) -> None:
    """Where the length or the magic number of a record is damaged, the answer behind it cannot be read: the
    other records come all the same, each once and in order."""
    queue = Queue(0, 80, gives)

    async def pull(offset: int, records: int) -> RawPull:
        answer = await queue.pull(offset, records)
        body = bytearray(answer.body)
        for at in record_places(answer.body)[0].tolist():
            number = queue_offset(answer.body, at)
            if number in damaged:
                body[at + (0, 1, 4, 5, 6, 7)[number % 6]] ^= 0x5A
        return evolve(answer, body=bytes(body))

    async def body() -> list[Block]:
        around = partial(pull_around, QUEUE, pull)
        windows = PullWindows(
            QueueRange(QUEUE, 0, 80), around, PullLimits(under_way=4, max_records=50), first, dense=True
        )
        found: list[Block] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(windows.run)
            while taken := await windows.take(1 << 20):
                found += blocks_of(QUEUE, taken)
            nursery.cancel_scope.cancel()
        return found

    assert offsets(in_no_time(body)) == [at for at in range(80) if at not in damaged]


def test_an_answer_that_is_no_record_names_the_offset() -> None:
    """Without badRecords the error has the queue, the offset of the pull, and that of the record before."""
    window = PullWindow(40, 42, True, [packed(put(b"a"), 40) + b"\xff" * 100])
    with pytest.raises(
        SourceError,
        match=r"queue 3 of topic Orders .* from offset 40 on of \d+, behind the record at queue offset 40",
    ):
        list(blocks_of(QUEUE, [window]))
