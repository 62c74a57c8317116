"""Op messages: the queue offsets of half messages that have ended, many in one message (store-format sheet,
section 11.1; Java: TransactionalOpBatchService)."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Final

import trio

from rmqkit.errors import RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import BORN_HOST_V6
from rmqkit.plugin.broker import Broker
from rmqkit.protocol.tags import tags_code
from rmqkit_transaction.settings import TransactionSettings

_log: Final[logging.Logger] = limited_logger(__name__)
#: The tag of an op message, and what follows each offset in its body.
REMOVED, SEPARATOR = "d", ","
_PROPERTIES = {props.TAGS: REMOVED, props.WAIT: "true"}
_PROPERTIES_BYTES = props.encode(_PROPERTIES).encode()


def offsets_of(op: StoredMessage) -> list[int]:
    """The half offsets that an op message names; what is not a number is passed over, as in Java."""
    if op.properties.get(props.TAGS) != REMOVED:
        return []
    words = op.body.decode(errors="replace").split(SEPARATOR)
    return [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 20]


class Ops:
    """The op messages of one queue.

    pending   half offsets that have ended and are in no op message yet
    progress  the offset of the first op message that names a half message behind the progress of those
    """

    def __init__(self, broker: Broker, queue_id: int, progress: int) -> None:
        self._broker = broker
        self._queue_id = queue_id
        self.pending: deque[int] = deque()
        self.progress = progress
        #: (op offset, the highest half offset that it names), in order.
        self._written: deque[tuple[int, int]] = deque()
        self._pending_chars = 0
        #: Time of trio's clock; none yet.
        self._last_write_s = -math.inf
        self._some, self._full = trio.Event(), trio.Event()
        self._stopped = False

    def read(self, offset: int, half_offsets: list[int]) -> None:
        """Note an op message that was written before; in the order of their offsets."""
        self._written.append((offset, max(half_offsets, default=-1)))

    def add(self, half_offset: int) -> None:
        """Name a half message in an op message, within `transactionOpBatchInterval`."""
        self.pending.append(half_offset)
        self._pending_chars += len(str(half_offset)) + 1
        self._some.set()
        if self._stopped:
            self.write()
        elif self._pending_chars > self._settings.transaction_op_msg_max_size:
            self._full.set()

    @property
    def _settings(self) -> TransactionSettings:
        return self._broker.config.owned(TransactionSettings)

    def write(self) -> bool:
        """Write everything pending. False when the log takes nothing now; what is left stays pending."""
        self._full = trio.Event()
        self._last_write_s = trio.current_time()
        limit = self._settings.transaction_op_msg_max_size
        while self.pending:
            names_of: list[int] = []
            chars = 0
            for offset in self.pending:
                names_of.append(offset)
                chars += len(str(offset)) + 1
                if chars >= limit:
                    break
            if not self._append(names_of):
                return False
            for _ in names_of:
                self.pending.popleft()
            self._pending_chars -= chars
        self._some = trio.Event()
        return True

    def _append(self, half_offsets: list[int]) -> bool:
        broker = self._broker
        body = "".join([f"{offset}{SEPARATOR}" for offset in half_offsets]).encode()
        op = PutMessage(
            topic=names.OP_HALF_TOPIC,
            queue_id=self._queue_id,
            body=body,
            properties=dict(_PROPERTIES),
            properties_bytes=_PROPERTIES_BYTES,
            sys_flag=BORN_HOST_V6 if len(broker.store_host) > 8 else 0,
            born_timestamp_ms=broker.clock.now_ms(),
            born_host=broker.store_host,
            tags_code=tags_code(REMOVED),
            wait=False,
        )
        (at,) = broker.appender.append(MessageRun([op]))
        if isinstance(at, RequestRefused):
            _log.error(
                "the ends of %d transactions cannot be written, trying again: %s", len(half_offsets), at
            )
            return False
        self._written.append((at.queue_offset, max(half_offsets)))
        return True

    def advance(self, half_base: int) -> None:
        """Move the progress over op messages that name no half message from `half_base` on."""
        while self._written and self._written[0][1] < half_base:
            self.progress = self._written.popleft()[0] + 1

    async def run(self) -> None:
        """Write what is pending when it fills a message, or when the interval since the last write is
        over."""
        while True:
            await self._some.wait()
            due_s = self._last_write_s + self._settings.transaction_op_batch_interval / 1000
            with trio.move_on_at(due_s):
                await self._full.wait()
            if not self.write():
                await trio.sleep(self._settings.transaction_op_batch_interval / 1000)

    def stop(self) -> bool:
        """Write everything pending, and what comes from now on at once."""
        self._stopped = True
        return self.write()
