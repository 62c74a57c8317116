"""Half messages and their ends, as a producer sends them to a broker without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from rmqkit.model import names
from rmqkit.model.message import Appended, PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqkit.protocol import record
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageResponseHeader,
)
from rmqkit.protocol.message_id import parse_offset_message_id
from rmqkit.testing.clock import FakeClock
from rmqkit.toolkit.log_records import log_records
from rmqkit_transaction.service import TransactionService
from tests.broker.desk import BrokerHarness, open_desk

GROUP = "pg"
COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0
#: The forms in which transactions are kept.
HALF_TOPICS, STATE_TABLE = KINDS = ("half-topics", "state-table")
#: More than the time before the first question, in ms.
OLD_MS = 6_001
#: Few, so that tests come to the end of a file.
ROWS_PER_FILE = 16
START_MS = FakeClock().now_ms()
_clocks: dict[Path, int] = {}


@define
class Sent:
    """A half message as its producer knows it."""

    key: str
    number: int
    physical_offset: int
    group: str = GROUP

    def end_request(self, kind: int = COMMIT, *, oneway: bool = False, **changed: Any) -> Command:
        values: dict[str, Any] = {
            "producer_group": self.group,
            "tran_state_table_offset": self.number,
            "commit_log_offset": self.physical_offset,
            "commit_or_rollback": kind,
            "msg_id": self.key,
            "transaction_id": self.key,
        } | changed
        header = EndTransactionRequestHeader(**values)
        return request(RequestCode.END_TRANSACTION, header, opaque=7, oneway=oneway)


@define
class Question:
    """A CHECK_TRANSACTION_STATE that came to a producer."""

    header: CheckTransactionStateRequestHeader
    message: StoredMessage

    @property
    def sent(self) -> Sent:
        """The half message as its producer knows it from the question."""
        header = self.header
        return Sent(
            header.transaction_id or "",
            header.tran_state_table_offset,
            header.commit_log_offset,
            self.message.properties["PGROUP"],
        )


@define
class Producer:
    """A producer of transactions, with the service that asks it."""

    desk: BrokerHarness
    service: TransactionService
    answered: int = field(default=0)

    async def half(
        self,
        body: bytes = b"body",
        key: str = "K",
        group: str = GROUP,
        *,
        queue_id: int = 0,
        **properties: str,
    ) -> Sent:
        """Send a half message that is born now."""
        answer = await self.desk.sent(
            body=body,
            queue_id=queue_id,
            properties={"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key} | properties,
            born_timestamp=self.desk.clock.now_ms(),
        )
        return sent_of(answer, key, group)

    def foreign_half(self, properties: dict[str, str], born_ms: int | None = None) -> Sent:
        """A half message in the half topic as another broker, or a damage, may have left it there."""
        message = PutMessage(
            topic=names.HALF_TOPIC,
            queue_id=0,
            body=b"foreign",
            properties={},
            properties_bytes=b"",
            born_timestamp_ms=self.desk.clock.now_ms() if born_ms is None else born_ms,
        )
        message.set_properties({"PGROUP": GROUP} | properties)
        (at,) = self.desk.broker.appender.append(MessageRun([message]))
        assert isinstance(at, Appended)
        return Sent(properties.get("UNIQ_KEY", ""), at.queue_offset, at.physical_offset)

    async def end(self, sent: Sent, kind: int = COMMIT, **changed: Any) -> Command:
        """The answer to an END_TRANSACTION."""
        answer = await self.desk.outcome(sent.end_request(kind, **changed))
        assert answer is not None
        return answer

    async def ended(self, sent: Sent, kind: int = COMMIT, **changed: Any) -> None:
        """End a transaction, with success."""
        answer = await self.end(sent, kind, **changed)
        assert (answer.code, answer.remark) == (0, None)

    async def questions(self, later_ms: int = OLD_MS) -> list[Question]:
        """The questions of a round after some time."""
        self.desk.clock.advance(later_ms)
        await self.service.check()
        pushed = self.desk.peer.pushed
        found = [question_of(command) for command in pushed]
        pushed.clear()
        return found

    def delivered(self, queue_id: int = 0) -> list[bytes]:
        """What consumers of the topic see in a queue."""
        return [message.body for message in self.desk.stored("T", queue_id)]

    def halves(self) -> list[StoredMessage]:
        """The records of half messages in the log, of either form."""
        store = self.desk.broker.store
        found: list[StoredMessage] = []
        offset = store.start_offset
        with store.blocking_reads():
            while data := store.read_log(offset, 1_000_000):
                found += [one.message for one in log_records(offset, data) if one.message is not None]
                offset += len(data)
        return [each for each in found if each.topic == names.HALF_TOPIC or each.sys_flag & 0xC == 4]

    @property
    def open_count(self) -> int:
        found = self.service.figures()["transactionsOpen"]
        assert isinstance(found, int)
        return found

    def ops(self) -> list[bytes]:
        return [message.body for message in self.desk.stored(names.OP_HALF_TOPIC)]


def sent_of(answer: SendMessageResponseHeader, key: str, group: str = GROUP) -> Sent:
    """A half message as a client reads it from the answer to its send."""
    return Sent(key, answer.queue_offset, parse_offset_message_id(answer.msg_id)[2], group)


def question_of(command: Command) -> Question:
    assert (command.code, command.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    return Question(command.header(CheckTransactionStateRequestHeader), record.unpack(command.body))


def service_of(desk: BrokerHarness) -> TransactionService:
    service = desk.broker.registry.services["transaction"]
    assert isinstance(service, TransactionService)
    return service


@asynccontextmanager
async def serving(desk: BrokerHarness, *, graceful: bool = True) -> AsyncIterator[Producer]:
    """The service runs, and a producer of the group is connected; leaving stops the service, gracefully or as
    a crash would."""
    service = service_of(desk)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run, desk.broker)
        await desk.heartbeat(producers=[GROUP])
        yield Producer(desk, service)
        if graceful:
            await service.stop(desk.broker)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def producing(
    directory: Path, *, graceful: bool = True, keeping: str = HALF_TOPICS, **keys: Any
) -> AsyncIterator[Producer]:
    """A broker with its service and a producer. Its clock goes on where it was at the last one over the same
    directory."""
    options: dict[str, Any] = {
        "plugins.transaction.store": keeping,
        "plugins.transaction.rowsPerFile": ROWS_PER_FILE,
    }
    async with open_desk(directory, **(options | keys)) as desk:
        desk.clock.advance(_clocks.get(directory, 0))
        try:
            async with serving(desk, graceful=graceful) as producer:
                yield producer
        finally:
            _clocks[directory] = desk.clock.now_ms() - START_MS + 1
