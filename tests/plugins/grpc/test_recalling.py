"""Messages that are taken back before their time."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.errors import RmqError
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit_grpc.recalling import recall
from rmqkit_grpc.session import Exchange, Session
from rmqkit_grpc.statuses import Refusal
from tests.plugins.grpc.client import CODES, M, resource
from tests.plugins.grpc.test_session import Nowhere


def asked(handle: str) -> Any:
    request = M["RecallMessageRequest"](topic=resource("T", "shop"), recall_handle=handle)
    return recall(Exchange(Session("c", Nowhere()), 1, {}, 0, None), request)


def of_broker(steps: Any) -> Command:
    """What the call asks of the broker."""
    (command,) = next(steps)
    assert isinstance(command, Command)
    return command


def test_a_recall() -> None:
    """The broker answers the id of the message."""
    steps = asked("handle")
    command = of_broker(steps)
    assert command.code == RequestCode.RECALL_MESSAGE
    header = command.header(RecallMessageRequestHeader)
    assert (header.topic, header.recall_handle) == ("shop%T", "handle")
    with pytest.raises(StopIteration) as done:
        steps.send([answer(command, header=RecallMessageResponseHeader(msg_id="01AB"))])
    assert (done.value.value.status.code, done.value.value.message_id) == (CODES["OK"], "01AB")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.ILLEGAL_OPERATION, "BAD_REQUEST"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "NOT_IMPLEMENTED"),
        (ResponseCode.NO_PERMISSION, "FORBIDDEN"),
    ],
)
def test_a_recall_that_is_refused(code: int, status: str) -> None:
    """By the broker, whose reason is that of the status; a call without a handle asks nothing."""
    steps = asked("handle")
    command = of_broker(steps)
    with pytest.raises(RmqError, match="why") as caught:
        steps.send([answer(command, code, "why")])
    assert isinstance(caught.value, Refusal)
    assert caught.value.status_code == CODES[status]
    with pytest.raises(Refusal, match="missing"):
        next(asked(""))
