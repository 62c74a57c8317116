"""What this broker does not do, and that it says so."""

from __future__ import annotations

import pytest

from rmqkit.broker.processors.later import REFUSED
from rmqkit.protocol.codes import RequestCode, ResponseCode
from tests.broker.desk import Desk


@pytest.mark.parametrize("code", sorted(REFUSED))
async def test_a_feature_that_is_not_here_is_named(desk: Desk, code: int) -> None:
    """REQUEST_CODE_NOT_SUPPORTED with the code and the feature, so that nothing is accepted and forgotten."""
    answer = await desk.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert str(code) in (answer.remark or "")
    assert REFUSED[code] in (answer.remark or "")


@pytest.mark.row("S030")
async def test_the_fast_port_does_not_pull(desk: Desk) -> None:
    """It serves what the normal port serves, save for pulls."""
    missing = set(desk.router.processors) - set(desk.fast_router.processors)
    assert missing == {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
