"""Routes of a broker for clients that know no name server."""

from __future__ import annotations

from pathlib import Path

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.testing.broker import dialer, running_broker
from rmqkit.testing.listening import CONNECT_TIMEOUT_MS, caller


async def test_remoting_clients_are_sent_to_a_name_server(tmp_path: Path) -> None:
    """A broker that answered them would hide the other brokers; the topic is not created."""
    header = GetRouteInfoRequestHeader(topic="Topic")
    async with (
        running_broker(tmp_path) as running,
        caller(await dialer()(running.address, CONNECT_TIMEOUT_MS)) as connection,
    ):
        asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        got = await connection.call(asked, CONNECT_TIMEOUT_MS)
        assert got.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "ask a name server" in (got.remark or "")
        assert running.context.topics.get("Topic") is None
