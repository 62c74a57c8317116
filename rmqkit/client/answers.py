"""What an answer that is no success means to the caller, and what to do next."""

from __future__ import annotations

from rmqkit.errors import BrokerError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command

_NEXT_STEPS: dict[int, str] = {
    ResponseCode.SYSTEM_ERROR: "the server's log says more",
    ResponseCode.SYSTEM_BUSY: "the server is overloaded; send again later or more slowly",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "is this address a broker where a name server was meant, or the reverse?",
    ResponseCode.MESSAGE_ILLEGAL: "change the message; sending it again will not help",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker takes no messages now: its disk is full, it is a slave, or it is shutting down",
    ResponseCode.NO_PERMISSION: "look at the permission of the topic (`rmqkit topic route NAME`), of the broker, and at the access rules",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic (`rmqkit topic create NAME`) or switch autoCreateTopicEnable on",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the filter expression",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "the heartbeat of this group has not reached the broker yet; try again",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group on the broker or switch autoCreateSubscriptionGroup on",
    ResponseCode.INVALID_PARAMETER: "check names and queue id; the route may be old",
}


def refusal(response: Command, address: str, doing: str) -> BrokerError:
    """The error of an answer: its text says what was being done, by whom it was refused, with which code and remark, and the next step."""
    error = BrokerError(response.code, response.remark or "no remark", address)
    step = _NEXT_STEPS.get(response.code)
    error.args = (f"{doing}: {error}" + (f" ({step})" if step else ""),)
    return error


def expect_success(response: Command, address: str, doing: str) -> Command:
    """The answer itself when it is a success. Raises BrokerError otherwise."""
    if response.code != ResponseCode.SUCCESS:
        raise refusal(response, address, doing)
    return response
