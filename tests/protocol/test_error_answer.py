"""Conversion of exceptions to answers."""

from __future__ import annotations

import pytest

from rmqkit.errors import ConnectFailed, RequestTimeout
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.error_answer import error_answer

ECHO = 1


@pytest.mark.parametrize("error", [ConnectFailed("10.0.0.1:1", "refused"), RequestTimeout("10.0.0.1:1", 5)])
def test_a_clients_own_codes_do_not_travel(error: ConnectFailed | RequestTimeout) -> None:
    """If a processor could not reach a third party, the answer is SYSTEM_ERROR, because 10001 and 10002 mean
    nothing to the peer."""
    response = error_answer(request(ECHO), error)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, str(error))
