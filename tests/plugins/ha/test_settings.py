"""Settings of the replication."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqkit.errors import ConfigError, RmqError
from rmqkit.plugin import listen
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.transport import Address
from rmqkit.testing.broker import running_broker
from rmqkit_ha import master
from tests.plugins.ha.pair import running_master
from tests.ports import free_port


async def refusal(tmp_path: Path, scheme: str = "memory", **keys: Any) -> str:
    """The reason why a broker does not start."""
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        async with running_broker(tmp_path, scheme=scheme, **keys):
            pass
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RmqError)
    return str(error)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"brokerRole": "SLAVE"}, "a slave has one above 0"),
        ({"brokerId": 1}, "set brokerRole = SLAVE as well"),
        ({"brokerId": 1, "brokerRole": "SYNC_MASTER"}, "set brokerRole = SLAVE as well"),
        ({"brokerId": -1, "brokerRole": "SLAVE"}, "a slave has one above 0"),
        ({"brokerRole": "LEADER"}, "brokerRole = 'LEADER'"),
        ({"inSyncReplicas": 2}, "only brokerRole = SYNC_MASTER waits for slaves"),
        ({"brokerRole": "SYNC_MASTER", "minInSyncReplicas": 3}, "that many copies are never awaited"),
        ({"brokerRole": "SYNC_MASTER", "totalReplicas": 1}, "SEND_OK would need 2 copies"),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": 0}, "inSyncReplicas = 0"),
        ({"brokerRole": "SYNC_MASTER", "slaveTimeout": 0}, "slaveTimeout = 0"),
        ({"brokerRole": "SYNC_MASTER", "plugins.ha.listen": "nonsense"}, "plugins.ha.listen"),
        ({"brokerRole": "SYNC_MASTER", "disabledPlugins": "ha"}, "the plugin ha is off"),
        ({"plugins.ha.pinLimit": 1}, "has no such setting"),
    ],
)
async def test_a_start_is_refused(tmp_path: Path, keys: dict[str, Any], text: str) -> None:
    """Settings that contradict each other, or promise what is not there, stop the start."""
    assert text in await refusal(tmp_path, **keys)


async def test_one_copy_is_said_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SYNC_MASTER with inSyncReplicas = 1, the default of Apache's 5.x, is a warning at the start."""
    async with running_master(tmp_path, inSyncReplicas=1):
        pass
    assert next(each.getMessage() for each in caplog.records if each.levelno == logging.WARNING).startswith(
        "brokerRole = SYNC_MASTER with inSyncReplicas = 1: SEND_OK promises ONE copy"
    )


async def test_without_settings_there_is_no_replication(tmp_path: Path) -> None:
    """A broker of which no setting says that it has replicas listens for none and waits for none."""
    async with running_broker(tmp_path, scheme="memory") as broker:
        assert broker.context.replication.own == ""
        assert broker.context.appender.acks.conditions == ()


def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let another process have every port that the master asks for by its number; returns these numbers."""
    asked: list[int] = []

    async def bind(registry: Registry, addresses: Sequence[Address]) -> Any:
        (address,) = addresses
        if address.port:
            asked.append(address.port)
            raise ConfigError(f"cannot listen on {address}")
        return await listen.bind(registry, addresses)

    monkeypatch.setattr(master, "bind", bind)
    return asked


@pytest.mark.only_transport(why="the ports are of TCP")
async def test_beside_a_free_port_slaves_are_served_at_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port behind that of the clients, which the system chose, may be taken in the meantime."""
    asked = taken(monkeypatch)
    async with running_broker(tmp_path, scheme="tcp", brokerRole="ASYNC_MASTER") as broker:
        own = Address.parse(broker.context.replication.own)
        assert asked == [broker.address.port + 1]
        assert own.port not in (0, *asked)


@pytest.mark.only_transport(why="the ports are of TCP")
async def test_a_port_that_was_asked_for_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slaves may have it in their settings."""
    taken(monkeypatch)
    keys: dict[str, Any] = {"brokerRole": "ASYNC_MASTER"}
    for more in ({"listenPort": free_port(-2, 1)}, {"haListenPort": free_port(0)}):
        assert "slaves are served at haListenPort" in await refusal(tmp_path, "tcp", **keys, **more)
