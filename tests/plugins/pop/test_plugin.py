"""What the plugin registers, and what a broker says without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from tests.broker.desk import open_desk
from tests.plugins.pop.pop_desk import PopDesk


@pytest.mark.row("S030")
async def test_what_waits_is_served_by_the_normal_port_alone(pops: PopDesk) -> None:
    """The fast port has no pops and no notifications; the other requests of pop consumption are on both."""
    normal, fast = pops.desk.router.processors, pops.desk.fast_router.processors
    for code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION):
        assert code in normal
        assert code not in fast
    for code in (RequestCode.ACK_MESSAGE, RequestCode.QUERY_ASSIGNMENT):
        assert fast[code] is normal[code]


async def test_without_the_plugin_its_requests_are_refused(tmp_path: Path) -> None:
    """With a remark that names it."""
    async with open_desk(tmp_path, disabledPlugins="pop") as desk:
        for code in (RequestCode.POP_MESSAGE, RequestCode.QUERY_ASSIGNMENT):
            answer = await desk.outcome(Command(code, opaque=7))
            assert answer is not None
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "the plugin pop" in (answer.remark or "")


async def test_without_the_service_its_requests_are_refused(tmp_path: Path) -> None:
    """With a remark that says why: the leases are not known."""
    async with open_desk(tmp_path, disabledServices="pop") as desk:
        answer = await desk.outcome(PopDesk(desk).pop_request())
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "switched off" in (answer.remark or "")
