"""Receipt handles of clients: those of remoting, and what else a request about a message needs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rmqkit.errors import DecodeError
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.model.names import LITE_PREFIX, lite_topic_fault
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import PopLiteMessageResponseHeader, PopMessageResponseHeader
from rmqkit.protocol.receipt import OWN_TOPIC, Receipt, parse_order_counts, parse_receipt, receipts
from rmqkit_grpc.delivering import stored_in
from rmqkit_grpc.messages import Code
from rmqkit_grpc.statuses import Refusal

#: Fields of a handle of remoting, which has the queue offset.
_OWN = 8
_MAX_DIGITS = 18


class Handle(NamedTuple):
    """A handle.

    log_offset  the place of its message in the log; None where it is not said
    lite_topic  the lite topic of its message; None without one
    """

    receipt: Receipt
    log_offset: int | None = None
    lite_topic: str | None = None

    @property
    def text(self) -> str:
        words = [self.receipt.text]
        if self.log_offset is not None:
            words.append(str(self.log_offset))
            if self.lite_topic is not None:
                words.append(self.lite_topic)
        return " ".join(words)


def handle_of(text: str) -> Handle:
    """The handle of a client. Raises Refusal."""
    try:
        receipt = parse_receipt(text)
        if receipt.offset is None:
            raise DecodeError(f"a handle without the place of its message: {text[:100]!r}")
    except DecodeError as error:
        raise Refusal(Code.INVALID_RECEIPT_HANDLE, str(error)) from error
    offset, lite_topic = [*text.split(" ")[_OWN : _OWN + 2], "", ""][:2]
    if not (offset.isascii() and offset.isdigit() and len(offset) <= _MAX_DIGITS):
        return Handle(receipt)
    if not lite_topic:
        return Handle(receipt, int(offset))
    fault = lite_topic_fault(lite_topic)
    if fault is not None:
        raise Refusal(Code.INVALID_RECEIPT_HANDLE, fault)
    return Handle(receipt, int(offset), lite_topic)


def delivered(popped: Command, broker: str) -> list[tuple[Receipt, StoredMessage]]:
    """The messages of an answer with their handles."""
    header = popped.header(PopMessageResponseHeader)
    handles = receipts(header, broker)
    failed = parse_order_counts(header.order_count_info)
    found = []
    for stored in stored_in(popped.body):
        own = stored.properties.get(props.POP_CK)
        handle = parse_receipt(own) if own else handles.get((stored.queue_id, stored.queue_offset))
        if handle is None:
            continue
        times = 0 if own else failed.get((handle.retry, stored.queue_id, stored.queue_offset), 0)
        if times:
            # Of an ordered group; the record itself says nothing of it.
            stored = msgspec.structs.replace(stored, reconsume_times=stored.reconsume_times + times)
        found.append((handle, stored))
    return found


def lite_delivered(popped: Command, broker: str) -> list[tuple[Receipt, StoredMessage]]:
    """The messages of a pop of lite topics with their handles of remoting. Brokers of rmqkit give these with
    the messages. Apache's do not: there a message is in queues of several names, with an offset in each."""
    header = popped.header(PopLiteMessageResponseHeader)
    failed = (header.order_count_info or "").split(";")
    found = []
    for at, stored in enumerate(stored_in(popped.body)):
        own = stored.properties.get(props.POP_CK)
        if own:
            found.append((parse_receipt(own), stored))
            continue
        offset = _lite_offset(stored)
        if offset is None:
            continue
        place = broker, 0, offset
        receipt = Receipt(
            offset, header.pop_time, header.invisible_time, header.revive_qid, OWN_TOPIC, *place
        )
        times = int(failed[at]) if at < len(failed) and failed[at].isdigit() else 0
        if times:
            stored = msgspec.structs.replace(stored, reconsume_times=stored.reconsume_times + times)
        found.append((receipt, stored))
    return found


def _lite_offset(stored: StoredMessage) -> int | None:
    """The offset of a message in the queue of its lite topic, as Apache's broker says it."""
    queues = stored.properties.get(props.DISPATCHED_TO, "").split(",")
    offsets = stored.properties.get(props.DISPATCHED_OFFSETS, "").split(",")
    for name, offset in zip(queues, offsets, strict=False):
        if name.startswith(LITE_PREFIX) and offset.isascii() and offset.isdigit():
            return int(offset)
    return None


__all__ = ["Handle", "delivered", "handle_of", "lite_delivered"]
