"""Pulls with a filter in Python, named by the consumer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.filter import FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import BrokerHarness, bodies
from tests.plugins.filter.test_python import server

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


class Installed:
    """Registers PYTHON with the filters of its unit tests."""

    @hookimpl
    def rmqkit_register_filter_servers(self, register: Register[FilterServer], config: Config) -> None:
        register("PYTHON", server())


async def test_a_consumer_pulls_with_a_filter_by_its_name(opened: Opened) -> None:
    """An unknown name has the code of an expression that does not parse; a filter that fails tells the
    consumer, and the broker's run-time figures name it."""
    async with opened(extra=[("mine", Installed())], disabledPlugins="filter") as desk:

        async def pulled(expression: str) -> Command:
            peer = FakePeer()
            request = desk.pull_request(sys_flag=4, subscription=expression, expression_type="PYTHON")
            answer = await desk.outcome(request, peer)
            if answer is None:
                await peer.all_answered()
                (answer,) = peer.answers
            return answer

        for amount in ("3", "30"):
            await desk.sent(body=amount.encode(), properties={"amount": amount})
        assert bodies(await pulled("cheap?below=5")) == [b"3"]
        answer = await pulled("dear")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "no filter 'dear' is installed on the broker; there are: broken, cheap" in (
            answer.remark or ""
        )
        answer = await pulled("cheap?below=five")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the filter cheap is disabled on this broker: it raised ValueError" in (answer.remark or "")
        answer = await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert b"cheap: it raised ValueError" in answer.body
