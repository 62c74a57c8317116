"""Sends of several connections that are stored together lead to what the same sends of one connection lead
to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.connection import ConnectionCore
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.remoting.answers import FramedAnswers
from rmqkit.remoting.hooks_by_code import NO_HOOKS
from rmqkit.remoting.joined_run import Part
from rmqkit.remoting.route import Route
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness, open_desk

#: Where the address of the sender is in a record.
_BORN_HOST = slice(48, 56)
#: Names of properties that need a closer look, or other answers.
_PROPERTIES = (
    "",
    "KEYS\x01a b\x02",
    "TAGS\x01t\x02",
    "DELAY\x011\x02",
    "WAIT\x01false\x02",
    "x\x01\u00e9\x02",
)


@frozen
class Send:
    """A send without its opaque. `bodies` are those of a batch if there are several; an empty one is
    refused."""

    bodies: Sequence[bytes]
    properties: str
    queue_id: int

    def request(self, number: int) -> Command:
        """As it comes out of a connection."""
        key = f"UNIQ_KEY\x01K{number}\x02"
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic="T", queue_id=self.queue_id, properties=key + self.properties
        )
        code, (body, *further) = RequestCode.SEND_MESSAGE_V2, self.bodies
        if further:
            code, header.batch = RequestCode.SEND_BATCH_MESSAGE, True
            body = batch.encode([batch.BatchItem(0, each, key.encode()) for each in self.bodies])
        (command,) = FrameDecoder().feed(encode(request(code, header, body, opaque=number)))
        return command


sends = st.builds(
    Send,
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=3),
    properties=st.sampled_from(_PROPERTIES),
    # Queue 9 does not exist.
    queue_id=st.sampled_from((0, 0, 1, 2, 3, 9)),
)


class Connection(FramedAnswers, FakePeer):
    """A peer with the state of a connection, whose answers stay there until `received`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"10.0.0.{number}", 40_000 + number)
        self.core = ConnectionCore("there", 0)

    def answered(self) -> None:
        return

    async def received(self) -> list[Command]:
        """Answers that were given at once, and then those that had to wait."""
        await self.all_answered()
        return FrameDecoder().feed(b"".join(map(bytes, self.core.take_outgoing()))) + self.answers


async def log_of(desk: BrokerHarness) -> list[bytes]:
    """The records in the log, without the addresses of senders."""
    await desk.broker.appender.settle_everything()
    records, store = [], desk.broker.store
    with store.blocking_reads():
        at = store.statistics().min_physical_offset
        while at < store.statistics().max_physical_offset:
            record = store.read_record(at)
            assert record is not None
            records.append(bytes(record[: _BORN_HOST.start]) + bytes(record[_BORN_HOST.stop :]))
            at += len(record)
    return records


async def outcome(requests: Sequence[Command], counts: Sequence[int]) -> tuple[list[bytes], dict[Any, Any]]:
    """The log and the answers by opaque, when so many requests come from one connection each."""
    with tempfile.TemporaryDirectory() as directory:
        async with open_desk(Path(directory)) as desk:
            route = Route.to(desk.router.processors[RequestCode.SEND_MESSAGE_V2], NO_HOOKS)
            parts, start = [], 0
            for number, count in enumerate(counts):
                own = requests[start : start + count]
                parts.append(Part(Connection(number), own, own, None))
                start += count
            outcomes = route.outcomes(requests, [part.peer for part in parts for _ in part.left])
            start = 0
            for part in parts:
                route.answer(part.peer, part.run, None, outcomes[start : start + len(part.left)])
                start += len(part.left)
            answers = {}
            for peer, own, _, _ in parts:
                got = await peer.received()  # type: ignore[attr-defined]
                opaques = [each.opaque for each in own]
                assert sorted(each.opaque for each in got) == opaques
                if desk.broker.store.written_by_append:
                    assert [each.opaque for each in got] == opaques
                answers.update({each.opaque: (each.code, each.remark, each.fields()) for each in got})
            return await log_of(desk), answers


@settings(max_examples=25)
@given(st.lists(st.lists(sends, min_size=1, max_size=4), min_size=1, max_size=5))
def test_any_split_over_connections_stores_the_same(split: list[list[Send]]) -> None:
    """The log has the same bytes, apart from the addresses of senders, and every request has the same answer,
    which goes to its own connection in the order of its requests there."""
    requests = [each.request(at) for at, each in enumerate([each for own in split for each in own])]
    counts = [len(own) for own in split]
    joined = trio.run(partial(outcome, requests, counts))
    alone = trio.run(partial(outcome, requests, [len(requests)]))
    assert joined == alone
