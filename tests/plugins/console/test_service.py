"""The console in the process of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError, MissingExtra
from rmqkit.plugin import loader
from rmqkit.plugin.service import Service
from rmqkit.testing.broker import running_broker, test_config
from rmqkit.testing.service import ServiceContract
from rmqkit_console import settings
from rmqkit_console.service import ConsoleService
from rmqkit_console.settings import ConsoleSettings

HERE = "127.0.0.1:0"
ON: dict[str, Any] = {"plugins.console.listen": HERE}


class TestContract(ServiceContract):
    def make_service(self, config: Config) -> Service:
        return ConsoleService(ConsoleSettings(listen=HERE))


async def test_a_broker_without_an_address_for_a_console_has_none(tmp_path: Path) -> None:
    """The service is not even registered."""
    assert "console" not in loader.load(test_config(tmp_path)).services


async def test_its_settings_are_checked_at_the_start(tmp_path: Path) -> None:
    """As those of the command."""
    keys: dict[str, Any] = {"plugins.console.listen": "0.0.0.0:0"}
    with pytest.raises(ConfigError, match="add --user NAME"):
        loader.load(test_config(tmp_path, **keys))


async def test_a_broker_says_which_extra_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not start without a console that was asked for."""
    monkeypatch.setattr(settings, "_LIBRARIES", ("no_such_library",))
    with pytest.RaisesGroup(MissingExtra, allow_unwrapped=True, flatten_subgroups=True):
        async with running_broker(tmp_path, **ON):
            pass


async def test_the_console_has_an_address(tmp_path: Path) -> None:
    """While the broker runs; the guard is that of the command."""
    async with running_broker(tmp_path, **ON) as running:
        console = running.context.registry.services["console"]
        assert isinstance(console, ConsoleService)
        assert console.door is not None
        async with httpx.AsyncClient(base_url=f"http://{console.door}") as http:
            assert (await http.get("/static/console.css")).status_code == 200
            assert (await http.get("/", headers={"host": "evil.example"})).status_code == 421
        await trio.lowlevel.checkpoint()
    assert console.door is None
