"""Receipt handles of clients: those of remoting, and what else a request about a message needs."""

from __future__ import annotations

from typing import NamedTuple

from rmqkit.errors import DecodeError
from rmqkit.model.names import lite_topic_fault
from rmqkit.protocol.receipt import Receipt, parse_receipt
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


__all__ = ["Handle", "handle_of"]
