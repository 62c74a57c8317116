"""The transaction id, which clients only hand back. It has all that ends the transaction: its broker, and
where the half message is in its queue and in the log. So there is no table of open transactions, no time
limit, and any process that speaks for the broker can end one (gRPC sheet, section 7.4)."""

from __future__ import annotations

import re
from typing import NamedTuple

from rmqkit.protocol.headers import SendMessageResponseHeader
from rmqkit.protocol.message_id import parse_offset_message_id
from rmqkit_grpc.messages import Code
from rmqkit_grpc.statuses import Refusal

_FORM = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-((?:[0-9a-f]{2}){0,255})-(.{1,255})", re.DOTALL)


class Transaction(NamedTuple):
    """The half message of a transaction.

    queue_offset  in the queue of half messages
    log_offset    in the log
    broker_name   the broker that has it
    message_id    the id that its sender gave it
    """

    queue_offset: int
    log_offset: int
    broker_name: str
    message_id: str


def of_send(broker_name: str, message_id: str, header: SendMessageResponseHeader) -> str:
    """The id for a half message that was stored."""
    _, _, log_offset = parse_offset_message_id(header.msg_id)
    return text_of(Transaction(header.queue_offset, log_offset, broker_name, message_id))


def text_of(transaction: Transaction) -> str:
    """A transaction as text."""
    broker = transaction.broker_name.encode().hex()
    return f"{transaction.queue_offset:x}-{transaction.log_offset:x}-{broker}-{transaction.message_id}"


def parse(text: str) -> Transaction:
    """The transaction of a text. Raises Refusal."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Refusal(
            Code.INVALID_TRANSACTION_ID,
            f"{text!r} is not a transaction id of this broker: give the one of the send",
        )
    broker = bytes.fromhex(match[3]).decode("utf-8", "replace")
    return Transaction(int(match[1], 16), int(match[2], 16), broker, match[4])


__all__ = ["Transaction", "of_send", "parse", "text_of"]
