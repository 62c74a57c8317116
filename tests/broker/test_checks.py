"""Errors and warnings of a start from settings and plugins together."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from rmqkit import hookimpl
from rmqkit.broker import checks
from rmqkit.config import Config, load
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.loader import Registry
from rmqkit.testing.broker import running_broker


def loaded(*extra: tuple[str, object], **keys: object) -> tuple[Config, Registry]:
    """Settings from a command line, and the installed plugins with additional ones."""
    config = load(environ={}, flags=keys)
    return config, loader.load(config, extra=extra)


class Owned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A setting of RocketMQ that only a plugin implements."""

    acl_enable: bool = False
    transaction_time_out: Annotated[int, msgspec.Meta(gt=0)] = 6


def claiming(kind: type[msgspec.Struct]) -> tuple[str, object]:
    """A plugin that owns settings."""

    def register_settings(register: Register[type[msgspec.Struct]]) -> None:
        register("claims", kind)

    return "claims", types.SimpleNamespace(
        claim=hookimpl(register_settings, specname="rmqkit_register_settings")
    )


async def test_a_broker_does_not_start_with_a_promise_it_cannot_keep(tmp_path: Path) -> None:
    """A broker of synchronous replication would acknowledge messages that no replica has, so it stops before
    it opens anything."""
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match=r"brokerRole = 'SYNC_MASTER'.*plugin ha is off")
    ):
        async with running_broker(tmp_path / "data", brokerRole="SYNC_MASTER", disabledPlugins="ha"):
            pytest.fail("it started")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_address_that_nobody_can_reach_is_refused(host: str) -> None:
    """Listening on every address requires an advertised address; the error names the setting to change."""
    (fault,) = checks.faults(*loaded(bindAddress=host))
    assert fault.key == "bindAddress"
    assert "set brokerIP1" in fault.text
    assert checks.faults(*loaded(bindAddress=host, brokerIP1="192.0.2.7")) == []
    if host:
        assert [fault.key for fault in checks.faults(*loaded(brokerIP1=host))] == ["brokerIP1"]


def test_a_plugin_takes_a_setting_out_of_the_refused_ones() -> None:
    """A setting that a plugin owns is read with its type, one of another type is refused; a setting that is
    not given has the plugin's default."""
    plugin = claiming(Owned)
    config, registry = loaded(plugin, aclEnable="true", transactionTimeOut="9")
    assert checks.faults(config, registry) == []
    assert list(checks.warnings(config, registry)) == []
    assert config.owned(Owned) == Owned(acl_enable=True, transaction_time_out=9)
    assert Config().owned(Owned) == Owned()
    (fault,) = checks.faults(*loaded(plugin, transactionTimeOut="soon"))
    assert fault.text.startswith("setting transactionTimeOut = 'soon' (command line): Expected `int`")


def test_settings_without_effect_share_one_warning() -> None:
    """Thread pools and queues of Java's broker are named together, once, with the reason."""
    (warning,) = checks.warnings(
        *loaded(sendMessageThreadPoolNums=4, pullThreadPoolQueueCapacity=9, forceRegister="true")
    )
    assert "sendMessageThreadPoolNums, pullThreadPoolQueueCapacity (one event loop" in warning.text
    assert "forceRegister (" in warning.text
    assert list(checks.warnings(*loaded())) == []


def test_a_table_of_a_plugin_that_is_off_is_warned_of() -> None:
    """Its settings would be taken for effective; the warning says which setting switches the plugin on."""
    (warning,) = checks.warnings(*loaded(**{"plugins.audit.maxBytes": "100000"}))
    assert warning.key == "plugins.audit"
    assert "set hooks = audit" in warning.text
    assert list(checks.warnings(*loaded(hooks="audit", **{"plugins.audit.maxBytes": "100000"}))) == []
