"""The answers to pulls that found messages (wire-protocol sheet, section 3.2)."""

from __future__ import annotations

from struct import Struct

from rmqkit.model.slices import joined
from rmqkit.plugin.request import Answer, Reply
from rmqkit.plugin.store import ReadResult
from rmqkit.protocol.codes import VERSION, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers.pull import pull_answer_fields

_JSON = int(SerializeType.JSON)
_SUCCESS = int(ResponseCode.SUCCESS)
#: Length of the rest of a frame, header length (serialisation 0).
_prefix = Struct(">ii").pack
#: Records of at most this size are joined with their head, which costs less than a vectored write.
_JOINED_BYTES = 60 * 1024
#: The header of a success, to be filled in with the suggested broker, next, lowest and highest offset, opaque
#: and remark.
_FOUND = (
    '{"code":0,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d",'
    '"maxOffset":"%d","topicSysFlag":"0","groupSysFlag":"0"},"flag":1,"language":"PYTHON","opaque":%d,'
    f'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
).encode()


def found_answer(request: Command, result: ReadResult, suggested: int = 0) -> Answer:
    """The answer to a pull whose result is FOUND; `suggested` is the id of the broker to read next.
    In JSON its header is filled into a template, which takes a fifth of an encoder's time."""
    size = result.total_bytes
    if request.codec != _JSON or size > _JOINED_BYTES:
        head = answer(request, _SUCCESS, result.status.value)
        head.ext = pull_answer_fields(result.next_offset, result.min_offset, result.max_offset, suggested)
        return Reply(head, result.slices, size)
    text = _FOUND % (suggested, result.next_offset, result.min_offset, result.max_offset, request.opaque)
    return joined(_prefix(len(text) + size + 4, len(text)) + text, result.slices, size)


__all__ = ["found_answer"]
