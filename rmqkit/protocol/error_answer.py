"""The answer to a failed request, made from the exception."""

from __future__ import annotations

from rmqkit.errors import DecodeError, RequestRefused, RmqError, wire_code
from rmqkit.log_limit import limited_logger
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer

_log = limited_logger(__name__)
#: Maximum number of characters of a remark; a longer one is cut.
_REMARK_LIMIT = 4096


def error_answer(request: Command, error: Exception) -> Command:
    """The answer for an exception: code and text of rmqkit's errors, SYSTEM_ERROR and a log line for any
    other."""
    if isinstance(error, RequestRefused):
        return _failure(request, error.code, error.remark)
    if isinstance(error, DecodeError):
        return _failure(request, ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}")
    if isinstance(error, RmqError):
        return _failure(request, wire_code(error), str(error))
    if isinstance(error, OSError):
        # The disk is full or failing; a traceback would not help.
        _log.error("request %s failed: %s", request.code, error)
        return _failure(request, ResponseCode.SYSTEM_ERROR, f"the system refused: {error.strerror or error}")
    _log.error("request %s failed", request.code, exc_info=error)
    return _failure(request, ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}: {error}")


def _failure(request: Command, code: int, remark: str) -> Command:
    return answer(request, code, remark.encode("utf-8", "backslashreplace").decode()[:_REMARK_LIMIT])
