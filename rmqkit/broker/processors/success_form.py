"""The JSON answer to a stored send as a template, filled in with values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from struct import Struct

import msgspec

from rmqkit.model.names import PARKING_TOPICS
from rmqkit.model.properties import UNIQ_KEY
from rmqkit.plugin.hooks import SendRun
from rmqkit.plugin.request import Answer
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import SerializeType

_JSON = int(SerializeType.JSON)
#: Length and header length (serialisation 0) of a frame without a body.
_prefix = Struct(">ii").pack
_NOTHING_FURTHER: Iterable[bytes] = repeat(b"")


class ValueForm:
    """The template of one broker.

    id_head  an offset message id up to its last 16 digits, the physical offset
    pieces   the header before, between and after the message ids, queue id, queue offset, transaction id and
             opaque
    """

    def __init__(self, id_head: str, pieces: Sequence[bytes]) -> None:
        self._id_form = id_head + "%016X"
        begin, queue, offset, key, opaque, end = (piece.replace(b"%", b"%%") for piece in pieces)
        ids = self._id_form.encode() + b"%b"
        self._header = begin + ids + queue + b"%d" + offset + b"%d" + key + b"%b%b" + opaque + b"%d" + end

    def fill(self, sends: SendRun, other: Callable[[int], Answer]) -> list[Answer]:
        """One answer for each of these stored sends: a frame, or what `other` gives for the number of a send
        whose answer has another form: because of its serialisation, without a unique key, or because a hook
        keeps its message elsewhere."""
        firsts, places, further = sends.messages, sends.results, _NOTHING_FURTHER
        if sends.sizes is not None:
            spans = [sends.span(at) for at in range(len(sends))]
            firsts, places = [firsts[span.start] for span in spans], [places[span.start] for span in spans]
            further = [self._further(sends.results[span]) for span in spans]
        form = self._header
        answers: list[Answer] = []
        for request, properties, message, at, ids in zip(
            sends.requests, sends.properties, firsts, places, further, strict=False
        ):
            key = properties.get(UNIQ_KEY)
            if key and request.codec == _JSON and message.topic not in PARKING_TOPICS:
                quoted = key.encode()
                if not quoted.isalnum():
                    quoted = msgspec.json.encode(key)[1:-1]
                text = form % (at[1], ids, message.queue_id, at[0], quoted, b"", request.opaque)
                size = len(text)
                answers.append(_prefix(size + 4, size) + text)
            else:
                answers.append(other(len(answers)))
        return answers

    def parked(self, opaque: int, at: Appended, queue_id: int, key: str, handle: str | None) -> bytes:
        """The answer to a send whose message waits in an internal topic, with the handle that recalls it, if
        there is one."""
        recall = b"" if handle is None else b'","recallHandle":"' + handle.encode()
        quoted = msgspec.json.encode(key)[1:-1]
        text = self._header % (at[1], b"", queue_id, at[0], quoted, recall, opaque)
        size = len(text)
        return _prefix(size + 4, size) + text

    def _further(self, results: Sequence[Appended]) -> bytes:
        """The ids of a batch after its first one."""
        return "".join([f",{self._id_form % at.physical_offset}" for at in results[1:]]).encode()


__all__ = ["ValueForm"]
