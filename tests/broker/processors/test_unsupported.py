"""Requests of unsupported features."""

from __future__ import annotations

import pytest

from rmqkit.broker.processors.unsupported import REFUSED
from rmqkit.protocol.codes import RequestCode, ResponseCode
from tests.broker.desk import BrokerHarness

#: The plugins retention, ha, filter-server, timer, pop, transaction and protection of the harness answer
#: these.
_OF_PLUGINS = {
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.RECALL_MESSAGE,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.REGISTER_FILTER_SERVER,
    RequestCode.EXCHANGE_BROKER_HA_INFO,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.TRIGGER_LITE_DISPATCH,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
}


@pytest.mark.parametrize("code", sorted(REFUSED.keys() - _OF_PLUGINS))
async def test_a_feature_that_is_not_here_is_named(desk: BrokerHarness, code: int) -> None:
    """The answer is REQUEST_CODE_NOT_SUPPORTED with the code and the feature."""
    answer = await desk.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert str(code) in (answer.remark or "")
    assert REFUSED[code] in (answer.remark or "")


@pytest.mark.row("S030")
async def test_the_fast_port_does_not_pull(desk: BrokerHarness) -> None:
    """The fast port serves all requests of the normal port except those that wait for messages."""
    missing = set(desk.router.processors) - set(desk.fast_router.processors)
    pulls = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
    pops = {RequestCode.POP_MESSAGE, RequestCode.POP_LITE_MESSAGE, RequestCode.NOTIFICATION}
    assert missing == pulls | pops
