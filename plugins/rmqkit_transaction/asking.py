"""Asks producers for the outcome of their transactions (wire-protocol sheet, section 3.5; Java:
AbstractTransactionalMessageCheckListener, ProducerManager.getAvailableChannel)."""

from __future__ import annotations

import logging
from typing import Final

from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import CheckTransactionStateRequestHeader
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.protocol.record import message_size, pack
from rmqkit.toolkit.restored import restored
from rmqkit_transaction.limits import MAX_TRIES
from rmqkit_transaction.transaction_store import Half

_log: Final[logging.Logger] = limited_logger(__name__)


class Asking:
    """The questions of one broker. `asked` counts those that were sent, `unheard` those for which the group
    had no producer that took them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._members: dict[str, list[Peer]] = {}
        self._turn = 0
        self.asked = 0
        self.unheard = 0

    def begin_round(self) -> None:
        """Look up the producers of groups anew."""
        self._members.clear()

    def ask(self, half: Half) -> None:
        """Send a question, for a half message under its own topic and queue, to one producer of the group:
        each time to the next. The answer is an END_TRANSACTION; without one the next round asks again."""
        group = half.message.properties.get(props.PRODUCER_GROUP, "")
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = list(self._broker.clients.producers.get(group, ()))
        question = self._question(half)
        for _ in range(min(MAX_TRIES, len(members))):
            self._turn += 1
            peer = members[self._turn % len(members)]
            if not peer.closed and peer.push(question):
                self.asked += 1
                return
        self.unheard += 1
        _log.warning("no producer of group %r is connected that could say what became of its message", group)

    def _question(self, half: Half) -> Command:
        message, broker = half.message, self._broker
        transaction_id = message.properties.get(props.UNIQ_KEY)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=half.number,
            commit_log_offset=half.physical_offset,
            msg_id=transaction_id,
            transaction_id=transaction_id,
            offset_msg_id=offset_message_id(message.store_host, half.physical_offset),
            topic=names.HALF_TOPIC,
            bname=broker.config.broker_name,
        )
        return request(RequestCode.CHECK_TRANSACTION_STATE, header, _record(message, half), oneway=True)


def _record(message: StoredMessage, half: Half) -> bytes:
    """The record of a half message at its present place."""
    real = restored(message, message.topic, message.queue_id)
    return pack(
        real,
        message_size(real),
        half.number,
        half.physical_offset,
        message.store_timestamp_ms,
        message.store_host,
    )
