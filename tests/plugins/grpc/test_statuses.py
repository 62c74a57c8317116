"""What the response codes of a broker become."""

from __future__ import annotations

import pytest

from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_grpc.messages import CODE_NAMES, Code
from rmqkit_grpc.statuses import Refusal, checked, code_of, status_of


@pytest.mark.parametrize("code", [*ResponseCode, 12_345, -1])
def test_every_response_code_has_a_status(code: int) -> None:
    """It is one of the definitions, and OK for a success alone."""
    assert code_of(code) in CODE_NAMES
    assert (code_of(code) == Code.OK) == (code == ResponseCode.SUCCESS)


def test_the_status_of_an_answer() -> None:
    """The remark of the broker is its text; without one the code is."""
    assert status_of(Command()).code == Code.OK
    refused = status_of(Command(code=ResponseCode.TOPIC_NOT_EXIST, remark="no such topic"))
    assert (refused.code, refused.message) == (Code.TOPIC_NOT_FOUND, "no such topic")
    assert status_of(Command(code=4_711)).message == "response code 4711"


def test_an_answer_that_must_be_a_success() -> None:
    """Another one ends the call with its status."""
    success = Command()
    assert checked(success) is success
    with pytest.raises(Refusal, match="too busy") as caught:
        checked(Command(code=ResponseCode.SYSTEM_BUSY, remark="too busy"))
    assert caught.value.status_code == Code.TOO_MANY_REQUESTS
