"""The `Status` of answers: what a broker's response codes become (gRPC sheet, section 5)."""

from __future__ import annotations

from typing import Any

from rmqkit.errors import RmqError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_grpc.messages import V2, Code

Status = V2.messages["Status"]

_CODES: dict[int, int] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY: Code.MESSAGE_NOT_FOUND,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    ResponseCode.QUERY_NOT_FOUND: Code.OFFSET_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: Code.ILLEGAL_OFFSET,
    ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class Refusal(RmqError):
    """A call is answered with a status other than OK."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.status_code = code
        self.text = text


def ok() -> Any:
    return Status(code=Code.OK, message="OK")


def code_of(response_code: int) -> int:
    """The code of a status for a broker's response code."""
    return _CODES.get(response_code, Code.INTERNAL_SERVER_ERROR)


def status_of(answer: Command) -> Any:
    """The status that an answer of the broker becomes."""
    if not answer.code:
        return ok()
    return Status(code=code_of(answer.code), message=answer.remark or f"response code {answer.code}")


def checked(answer: Command) -> Command:
    """The answer, if it is a success. Raises Refusal."""
    if answer.code:
        status = status_of(answer)
        raise Refusal(status.code, status.message)
    return answer


__all__ = ["Refusal", "Status", "checked", "code_of", "ok", "status_of"]
