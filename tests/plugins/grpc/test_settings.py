"""The table [plugins.grpc]."""

from __future__ import annotations

import importlib.util

import pytest

from rmqkit.config import Config, load
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.address import Address
from rmqkit_grpc.settings import GrpcSettings, is_installed


@pytest.mark.parametrize(
    ("listen", "wanted"),
    [
        ("none", None),
        ("auto", Address("tcp", "127.0.0.1", 8081)),
        ("0.0.0.0:7", Address("tcp", "0.0.0.0", 7)),
        ("tls://localhost:9", Address("tls", "localhost", 9)),
        ("unix:///run/grpc", Address("unix", name="/run/grpc")),
    ],
)
def test_addresses(listen: str, wanted: Address | None) -> None:
    """An address of any transport, or one of the two words."""
    assert GrpcSettings(listen=listen).address == wanted


def test_a_broker_has_no_further_port_unless_told() -> None:
    """Brokers of tests and of programs do not get in each other's way."""
    assert Config().plugin_settings("grpc", GrpcSettings).address is None


def test_a_wrong_address_stops_the_start() -> None:
    """The error names the setting."""
    config = load(environ={}, flags={"plugins.grpc.listen": "8081"})
    with pytest.raises(ConfigError, match=r"plugins\.grpc\.listen.*HOST:PORT"):
        loader.load(config)


def test_whether_the_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library may be missing, or what it is a part of."""
    assert is_installed()
    found = importlib.util.find_spec

    for missing in ("google.protobuf", "google"):

        def find(name: str, package: str | None = None, missing: str = missing) -> object:
            if name == missing:
                return None
            if name.startswith(f"{missing}."):
                raise ModuleNotFoundError(missing)
            return found(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find)
        assert not is_installed()
