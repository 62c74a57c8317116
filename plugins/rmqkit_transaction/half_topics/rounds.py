"""A round over the open half messages (store-format sheet, section 11.1; Java:
TransactionalMessageServiceImpl.check).

Java reads the op messages during the round, and waits for those that may still come. Here the ends are known
at once, so an open half message that is old enough is due.
"""

from __future__ import annotations

import logging
from typing import Final

import trio
from msgspec.structs import replace

from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import Appended, PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.store import QueueUnit
from rmqkit.protocol.codes import is_temporary
from rmqkit.toolkit.restored import real_place
from rmqkit.toolkit.set_aside import Origin, prepare, set_aside
from rmqkit_transaction.half_topics.copies import given_up, stored_anew
from rmqkit_transaction.half_topics.loading import unpacked
from rmqkit_transaction.half_topics.reading import entries
from rmqkit_transaction.half_topics.state import QUEUE_ID, State
from rmqkit_transaction.immunity import immunity_ms
from rmqkit_transaction.settings import Reserved, TransactionSettings
from rmqkit_transaction.transaction_store import Ask, Half

_log: Final[logging.Logger] = limited_logger(__name__)
_SERVICE = "transaction"


class Round:
    """One round, with the settings of its beginning. `given_up` counts the half messages that go to
    TRANS_CHECK_MAX_TIME_TOPIC."""

    def __init__(self, state: State, ask: Ask) -> None:
        self._state = state
        self._broker = state.broker
        self._ask = ask
        self._settings = state.broker.config.owned(TransactionSettings)
        self._reserved_ms = state.broker.config.owned(Reserved).ms
        self.given_up = 0

    async def run(self) -> None:
        """Look at the open half messages in order, up to the first that is too young, and save the progress.
        Raises StoreError, OSError."""
        await self._look_at_all()
        await self._state.save()

    async def _look_at_all(self) -> None:
        ended, store = self._state.ended, self._broker.store
        offset, end = ended.next_open(ended.base), store.max_offset(names.HALF_TOPIC, QUEUE_ID)
        # What is stored during this round is for the next one. Java looks at the store times instead, and
        # does nothing for as long as its clock was set back.
        while offset < end and (found := await entries(store, names.HALF_TOPIC, QUEUE_ID, offset)):
            for unit, record in found:
                offset = unit.queue_offset
                if offset >= end or not (ended.has_ended(offset) or await self._look(unit, record)):
                    return
            offset = ended.next_open(offset + 1)
            await trio.lowlevel.checkpoint()

    async def _look(self, unit: QueueUnit, record: Buffer | None) -> bool:
        """Look at one open half message. False ends the round: this one is too young, and so are those behind
        it, or the log takes nothing now."""
        half = unpacked(record)
        if half is None:
            return await self._set_aside(unit, record, "it cannot be read")
        settings = self._settings
        age_ms = self._broker.clock.now_ms() - half.born_timestamp_ms
        times = _number(half.properties.get(props.TRANSACTION_CHECK_TIMES))
        if times >= settings.transaction_check_max or age_ms > self._reserved_ms:
            return await self._give_up(unit, record, half)
        immune_ms = immunity_ms(half.properties, settings.transaction_time_out)
        if immune_ms is not None and age_ms <= immune_ms:
            first = half.properties.get(props.TRANSACTION_PREPARED_QUEUE_OFFSET, str(unit.queue_offset))
            return await self._store_anew(unit, record, half, props.TRANSACTION_PREPARED_QUEUE_OFFSET, first)
        if immune_ms is None and 0 <= age_ms <= settings.transaction_time_out:
            return False
        return await self._store_anew(unit, record, half, props.TRANSACTION_CHECK_TIMES, str(times + 1))

    async def _store_anew(
        self, unit: QueueUnit, record: Buffer | None, half: StoredMessage, note: str, value: str
    ) -> bool:
        """Store a half message at the end of its queue, so that the progress can pass its old place, and ask
        for its outcome, unless it is immune."""
        try:
            message = stored_anew(half, {note: value})
            at = self._put(message)
        except (MessageIllegal, RequestRefused) as error:
            return await self._refused(unit, record, error)
        self._state.ended.add(unit.queue_offset)
        self._state.moved.move(unit.queue_offset, at.queue_offset, at.physical_offset)
        if note == props.TRANSACTION_CHECK_TIMES:
            self._ask_for(half, message.properties_bytes, at)
        return True

    def _ask_for(self, half: StoredMessage, properties_bytes: bytes, at: Appended) -> None:
        try:
            topic, queue_id = real_place(half)
        except DecodeError as error:
            _log.error("no producer can be asked for the half message at %s: %s", at.physical_offset, error)
            return
        real = replace(half, topic=topic, queue_id=queue_id, properties_bytes=properties_bytes)
        self._ask(Half(real, at.queue_offset, at.physical_offset))

    async def _give_up(self, unit: QueueUnit, record: Buffer | None, half: StoredMessage) -> bool:
        """Move a half message to the topic of those that nobody ended."""
        try:
            await self._broker.topics.ensure(names.CHECK_MAX_TIME_TOPIC, 1)
            if self._state.ended.has_ended(unit.queue_offset):
                return True
            self._put(given_up(half))
        except (MessageIllegal, RequestRefused) as error:
            return await self._refused(unit, record, error)
        self._state.end(unit.queue_offset)
        self.given_up += 1
        _log.error(
            "nobody ended the transaction %s of producer group %s: its message for topic %s is moved to %s",
            half.properties.get(props.UNIQ_KEY),
            half.properties.get(props.PRODUCER_GROUP),
            half.properties.get(props.REAL_TOPIC),
            names.CHECK_MAX_TIME_TOPIC,
        )
        return True

    def _put(self, message: PutMessage) -> Appended:
        (at,) = self._broker.appender.append(MessageRun([message]))
        if isinstance(at, RequestRefused):
            raise at
        return at

    async def _refused(
        self, unit: QueueUnit, record: Buffer | None, error: MessageIllegal | RequestRefused
    ) -> bool:
        """End the round when the log takes nothing now; a message that it never takes is set aside."""
        if not is_temporary(error.code):
            return await self._set_aside(unit, record, str(error))
        _log.error("the half messages from %s on stay where they are for now: %s", unit.queue_offset, error)
        return False

    async def _set_aside(self, unit: QueueUnit, record: Buffer | None, reason: str) -> bool:
        await prepare(self._broker)
        if self._state.ended.has_ended(unit.queue_offset):
            return True
        origin = Origin(_SERVICE, names.HALF_TOPIC, QUEUE_ID, unit.queue_offset, unit.physical_offset)
        if not set_aside(self._broker, origin, record, reason):
            return False
        self._state.end(unit.queue_offset)
        return True


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0
