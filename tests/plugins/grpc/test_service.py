"""The port for clients of gRPC."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import ConfigError, MissingExtra, first_error
from rmqkit.plugin.address import Address
from rmqkit.plugin.transport import Transport
from rmqkit.testing.broker import running_broker
from rmqkit_grpc import plugin, settings
from tests.plugins.grpc.client import CODES, CONNECT_TIMEOUT_MS, Client, M, producing

ROUTE = M["QueryRouteRequest"](topic=M["Resource"](name="T"))


def listen(where: str) -> dict[str, Any]:
    return {"plugins.grpc.listen": where}


def door(running: RunningBroker) -> Address | None:
    return running.context.registry.services["grpc"].door


async def _answers(running: RunningBroker) -> None:
    where = door(running)
    assert where is not None
    transport: Transport = running.context.registry.transport(where)
    async with await transport.connect(where, CONNECT_TIMEOUT_MS) as stream:
        client = Client(stream)
        await client.settle(producing("T"))
        assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]


async def test_a_port_of_its_own(tmp_path: Path) -> None:
    """Clients of gRPC are served there as at the broker's own port."""
    async with running_broker(tmp_path, **listen("127.0.0.1:0")) as running:
        where = door(running)
        assert where is not None
        assert where.port
        await _answers(running)
    assert door(running) is None


async def test_any_transport(tmp_path: Path) -> None:
    """The port needs no sockets."""
    async with running_broker(tmp_path, **listen("memory://grpc-door")) as running:
        await _answers(running)


async def test_no_port(tmp_path: Path) -> None:
    """A broker has none unless it is told."""
    async with running_broker(tmp_path) as running:
        assert door(running) is None


async def test_a_default_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A free one is used instead, which the log says."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        taken = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        monkeypatch.setattr(settings, "DEFAULT_ADDRESS", taken)
        with caplog.at_level(logging.WARNING):
            async with running_broker(tmp_path, **listen("auto")) as running:
                where = door(running)
                assert where is not None
                assert str(where) != taken
                await _answers(running)
    assert f"{taken} is taken" in caplog.text


async def test_a_chosen_port_that_is_taken(tmp_path: Path) -> None:
    """It stops the start: clients have been told where to connect."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        taken = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(BaseExceptionGroup) as caught:
            async with running_broker(tmp_path, **listen(taken)):
                pass
    error = first_error(caught.value)
    assert isinstance(error, ConfigError)
    assert taken in str(error)
    assert "--grpc HOST:PORT" in str(error)


async def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker runs; one whose settings name the port says what to install."""
    monkeypatch.setattr(plugin, "is_installed", lambda: False)
    async with running_broker(tmp_path) as running:
        assert "grpc" not in running.context.registry.protocols
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running_broker(tmp_path, **listen("127.0.0.1:0")):
            pass
    error = first_error(caught.value)
    assert isinstance(error, MissingExtra)
    assert error.extra == "grpc"
