"""Turns unsuccessful answers into errors that also say what the caller can do about them."""

from __future__ import annotations

from rmqkit.errors import BrokerError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command

_NEXT_STEPS: dict[int, str] = {
    ResponseCode.SYSTEM_ERROR: "the server's log says more",
    ResponseCode.SYSTEM_BUSY: "the server is overloaded; send again later or more slowly",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: (
        "is this address a broker where a name server was meant, or the reverse?"
    ),
    ResponseCode.MESSAGE_ILLEGAL: "change the message; a retry cannot succeed",
    ResponseCode.SERVICE_NOT_AVAILABLE: (
        "the broker accepts no messages now: its disk is full, it is a slave, or it is shutting down"
    ),
    ResponseCode.NO_PERMISSION: (
        "check the permissions of the topic (`rmqkit topic route NAME`) and of the broker, and the access"
        " rules"
    ),
    ResponseCode.TOPIC_NOT_EXIST: (
        "create the topic (`rmqkit topic create NAME`) or set autoCreateTopicEnable"
    ),
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the filter expression",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: (
        "the broker has not received a heartbeat of this group yet; try again"
    ),
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "create the group on the broker or set autoCreateSubscriptionGroup"
    ),
    ResponseCode.INVALID_PARAMETER: "check the names and the queue id; the route may be outdated",
}


def refusal(response: Command, address: str, doing: str) -> BrokerError:
    """The error for a refused request. Its text names the operation, the address, the code, the remark and
    the next step."""
    error = BrokerError(response.code, response.remark or "no remark", address)
    step = _NEXT_STEPS.get(response.code)
    error.args = (f"{doing}: {error}" + (f" ({step})" if step else ""),)
    return error


def expect_success(response: Command, address: str, doing: str) -> Command:
    """Return the answer if it is a success. Raises BrokerError otherwise."""
    if response.code != ResponseCode.SUCCESS:
        raise refusal(response, address, doing)
    return response
