"""Half messages in the log, with the state table (Java: TransactionStateService and TransactionCheckExecuter,
of which the interfaces alone were published)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

import trio
from msgspec.structs import replace

from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import is_temporary
from rmqkit.protocol.record import unpack
from rmqkit.toolkit.cold_reads import all_of, read_when_cached
from rmqkit.toolkit.restored import real_place, restored
from rmqkit_transaction.immunity import immunity_ms
from rmqkit_transaction.limits import MAX_LOOKS
from rmqkit_transaction.settings import Reserved, TransactionSettings
from rmqkit_transaction.state_table.follower import StateFollower
from rmqkit_transaction.transaction_store import LATER, NOTES, Ask, Half, TransactionStore

_log: Final[logging.Logger] = limited_logger(__name__)


class StateTables(TransactionStore):
    """A prepared message is stored under its own topic with the system flag PREPARED, so that it is in no
    queue; its number is that of its row in the state table. A second record, with the flag of the outcome,
    ends it.

    Questions are counted in memory: after a restart the count begins anew.
    """

    def __init__(self, broker: RequestBroker, follower: StateFollower) -> None:
        self._broker = broker
        self._follower = follower
        self._asked: dict[int, int] = {}
        self._given_up = 0
        self._promised = self._promised_after = 0

    def keep(self, message: PutMessage) -> None:
        end = self._follower.table.files.end
        if end != self._promised_after:
            self._promised = self._promised_after = end
        message.unqueued_offset = self._promised
        self._promised += 1
        if not NOTES.isdisjoint(message.properties):
            message.set_properties(
                {name: value for name, value in message.properties.items() if name not in NOTES}
            )
        message.properties = {name: value for name, value in message.properties.items() if name not in LATER}

    async def load(self) -> None:
        follower, store = self._follower, self._broker.store
        self._asked.clear()
        if follower.known:
            return
        follower.begin_table()
        for physical_offset, size_bytes in follower.open_in_redo_log().items():
            record = await read_when_cached(store, partial(store.read_record, physical_offset))
            try:
                message = None if record is None else unpack(record, check_crc=False)
            except DecodeError:
                message = None
            if message is not None:
                group = message.properties.get(props.PRODUCER_GROUP, "")
                follower.enter(physical_offset, size_bytes, message.store_timestamp_ms, group)
        follower.known = True

    def numbers_of(self, message: StoredMessage) -> Collection[int]:
        if message.sys_flag & TRANSACTION_MASK != TRANSACTION_PREPARED:
            return ()
        number = self._follower.open_rows.get(message.physical_offset)
        return {message.queue_offset} if number is None else {message.queue_offset, number}

    def open_half(self, message: StoredMessage) -> Half | None:
        number = self._follower.open_rows.get(message.physical_offset)
        return None if number is None else Half(message, number, message.physical_offset)

    def outcome(self, half: Half, *, commit: bool) -> PutMessage | None:
        return _ending(half, TRANSACTION_COMMIT if commit else TRANSACTION_ROLLBACK)

    def end(self, half: Half) -> None:
        # The follower sets the state when it comes to the record that was appended, which may be later.
        self._asked.pop(half.physical_offset, None)
        self._follower.close_row(half.physical_offset)

    def resumed(self, message: StoredMessage) -> PutMessage | None:
        if message.topic != names.CHECK_MAX_TIME_TOPIC:
            return None
        try:
            prepared = restored(message, *real_place(message), wait=False)
        except DecodeError:
            return None
        prepared.sys_flag |= TRANSACTION_PREPARED
        self.keep(prepared)
        return prepared

    async def check(self, ask: Ask) -> None:
        store, rows = self._broker.store, self._follower.open_rows
        offsets = [*rows]
        for first in range(0, len(offsets), MAX_LOOKS):
            some = offsets[first : first + MAX_LOOKS]
            reads = [partial(store.read_record, offset) for offset in some]
            records = await read_when_cached(store, partial(all_of, reads))
            for offset, record in zip(some, records, strict=True):
                if offset in rows and not await self._look(offset, record, ask):
                    return
            await trio.lowlevel.checkpoint()

    async def _look(self, offset: int, record: Buffer | None, ask: Ask) -> bool:
        """Look at one open prepared message. False ends the round: it is too young, and so are those behind
        it, or the log takes nothing now."""
        try:
            message = None if record is None else unpack(record)
        except DecodeError as error:
            _log.error("the prepared message at log offset %s cannot be read: %s", offset, error)
            message = None
        if message is None:
            # Nobody can end it: it stays in the table until the log is trimmed.
            return True
        settings = self._broker.config.owned(TransactionSettings)
        age_ms = self._broker.clock.now_ms() - message.born_timestamp_ms
        asked = self._asked.get(offset, 0)
        if asked >= settings.transaction_check_max or age_ms > self._broker.config.owned(Reserved).ms:
            return await self._give_up(offset, message)
        immune_ms = immunity_ms(message.properties, settings.transaction_time_out)
        if immune_ms is not None and age_ms <= immune_ms:
            return True
        if immune_ms is None and 0 <= age_ms <= settings.transaction_time_out:
            return False
        self._asked[offset] = asked + 1
        notes = {props.TRANSACTION_CHECK_TIMES: str(asked + 1)}
        bits = message.sys_flag & ~TRANSACTION_MASK
        noted = replace(
            message, sys_flag=bits, properties_bytes=props.edited(message.properties_bytes, (), notes)
        )
        ask(Half(noted, self._follower.open_rows[offset], offset))
        return True

    async def _give_up(self, offset: int, message: StoredMessage) -> bool:
        """Store a message in the topic of those that nobody ended, and roll it back."""
        await self._broker.topics.ensure(names.CHECK_MAX_TIME_TOPIC, 1)
        if offset not in self._follower.open_rows:
            return True
        given = restored(message, names.CHECK_MAX_TIME_TOPIC, 0, unseen=LATER, wait=False)
        given.sys_flag &= ~TRANSACTION_MASK
        place = {props.REAL_TOPIC: message.topic, props.REAL_QUEUE_ID: str(message.queue_id)}
        given.properties |= place
        given.properties_bytes = props.edited(message.properties_bytes, (), place)
        half = Half(message, self._follower.open_rows[offset], offset)
        rollback = _ending(half, TRANSACTION_ROLLBACK)
        rollback.wait = False
        results = self._broker.appender.append(MessageRun([given, rollback], [0, 0]))
        refused = next((each for each in results if isinstance(each, RequestRefused)), None)
        if refused is not None:
            _log.error("the prepared message at log offset %s is not given up now: %s", offset, refused)
            return not is_temporary(refused.code)
        self.end(half)
        self._given_up += 1
        _log.error(
            "nobody ended the transaction %s of producer group %s: its message for topic %s is moved to %s",
            message.properties.get(props.UNIQ_KEY),
            message.properties.get(props.PRODUCER_GROUP),
            message.topic,
            names.CHECK_MAX_TIME_TOPIC,
        )
        return True

    async def run(self) -> None:
        await trio.sleep_forever()

    async def stop(self) -> None:
        await self._broker.appender.settle_everything()

    def figures(self) -> Mapping[str, int]:
        return {
            "transactionsOpen": len(self._follower.open_rows),
            "transactionsGivenUp": self._given_up,
            "transactionEndsUnwritten": 0,
        }


def _ending(half: Half, kind: int) -> PutMessage:
    """The record that ends a transaction: the real message, or one without a body that is in no queue."""
    message = half.message
    unseen = frozenset({props.TRANSACTION_PREPARED}) if kind == TRANSACTION_COMMIT else LATER
    ending = restored(message, message.topic, message.queue_id, unseen=unseen)
    ending.sys_flag = message.sys_flag & ~TRANSACTION_MASK | kind
    ending.prepared_offset = half.physical_offset
    if kind == TRANSACTION_ROLLBACK:
        ending.body, ending.unqueued_offset = b"", half.number
    return ending
