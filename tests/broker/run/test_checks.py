"""Errors and warnings of a start from settings and plugins together."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from rmqkit import hookimpl
from rmqkit.broker.run import checks
from rmqkit.config import Config, load
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.store import MessageStore, StoreFactory
from rmqkit.testing.broker import running_broker
from rmqkit_store_memory.store import MemoryStore


def loaded(*extra: tuple[str, object], **keys: object) -> tuple[Config, Registry]:
    """Settings from a command line, and the installed plugins with additional ones."""
    config = load(environ={}, flags=keys)
    return config, loader.load(config, extra=extra)


class Owned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A setting of RocketMQ that only a plugin implements."""

    reject_pull_consumer_enable: bool = False
    start_accept_send_request_time_stamp: Annotated[int, msgspec.Meta(gt=0)] = 6


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
    (fault,) = checks.examine(*loaded(bindAddress=host)).faults
    assert fault.key == "bindAddress"
    assert "set brokerIP1" in fault.text
    assert checks.examine(*loaded(bindAddress=host, brokerIP1="192.0.2.7")).faults == []
    if host:
        assert [fault.key for fault in checks.examine(*loaded(brokerIP1=host)).faults] == ["brokerIP1"]


def test_a_plugin_takes_a_setting_out_of_the_refused_ones() -> None:
    """A setting that a plugin owns is read with its type, one of another type is refused; a setting that is
    not given has the plugin's default."""
    plugin = claiming(Owned)
    config, registry = loaded(plugin, rejectPullConsumerEnable="true", startAcceptSendRequestTimeStamp="9")
    assert checks.examine(config, registry) == ([], [])
    assert config.owned(Owned) == Owned(
        reject_pull_consumer_enable=True, start_accept_send_request_time_stamp=9
    )
    assert Config().owned(Owned) == Owned()
    (fault,) = checks.examine(*loaded(plugin, startAcceptSendRequestTimeStamp="soon")).faults
    assert fault.text.startswith(
        "setting startAcceptSendRequestTimeStamp = 'soon' (command line): Expected `int`"
    )


def test_settings_without_effect_share_one_warning() -> None:
    """Thread pools and queues of Java's broker are named together, once, with the reason."""
    (warning,) = checks.examine(
        *loaded(sendMessageThreadPoolNums=4, pullThreadPoolQueueCapacity=9, forceRegister="true")
    ).warnings
    assert "sendMessageThreadPoolNums, pullThreadPoolQueueCapacity (one event loop" in warning.text
    assert "forceRegister (" in warning.text
    assert checks.examine(*loaded()).warnings == []


def test_a_table_of_a_plugin_that_is_off_is_warned_of() -> None:
    """Its settings would be taken for effective; the warning says which setting switches the plugin on."""
    (warning,) = checks.examine(*loaded(**{"plugins.audit.maxBytes": "100000"})).warnings
    assert warning.key == "plugins.audit"
    assert "set hooks = audit" in warning.text
    assert checks.examine(*loaded(hooks="audit", **{"plugins.audit.maxBytes": "100000"})).warnings == []


@pytest.mark.parametrize("key", ["brokerIP1", "bindAddress"])
@pytest.mark.parametrize("host", ["${HOST_IP}", "192.168.1.5:10911", "外网ip", "no such host", "256.1.1.1"])
def test_a_host_without_an_address_is_found_before_the_start(key: str, host: str) -> None:
    """Placeholders, ports and misspelt addresses are refused by the settings they stand in, with a remedy."""
    (fault,) = checks.examine(*loaded(**{key: host})).faults
    assert fault.key == key
    assert repr(host) in fault.text
    assert "IP address" in fault.text


@pytest.mark.parametrize("host", ["127.0.0.1", "fd00::1:7a", "localhost", "10.1.2.3"])
def test_a_host_with_an_address_is_accepted(host: str) -> None:
    """IPv4, IPv6 without brackets, and names."""
    assert checks.examine(*loaded(brokerIP1=host)).faults == []


@pytest.mark.parametrize(
    ("told", "listens", "warned"),
    [
        ("10.1.2.3", None, True),
        ("127.9.9.9", None, True),
        ("10.1.2.3", "localhost", True),
        ("fd00::1", "::1", True),
        ("127.0.0.1", None, False),
        ("localhost", "127.0.0.1", False),
        ("10.1.2.3", "0.0.0.0", False),
        ("10.1.2.3", "10.9.9.9", False),
    ],
)
def test_an_address_where_nothing_listens_is_warned_of(told: str, listens: str | None, warned: bool) -> None:
    """A broker on the loopback that tells clients another address is not reached there; the warning names
    both settings. A wildcard, or another network behind a translation of addresses, is not warned of."""
    keys = {"brokerIP1": told} | ({} if listens is None else {"bindAddress": listens})
    found = checks.examine(*loaded(**keys)).warnings
    assert [warning.key for warning in found] == ["brokerIP1"] * warned
    assert all("bindAddress = 0.0.0.0" in warning.text for warning in found)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"store": "memory", "enableConsumeQueueExt": "true"}, "enableConsumeQueueExt"),
        ({"store": "lmdb", "dispatchers": "index"}, "consume queues"),
        ({"brokerRole": "SLAVE", "brokerId": "1", "plugins.ha.listen": "10.0.0.5"}, "plugins.ha.listen"),
        ({"plugins.ha.elected": "true"}, "brokerRole = SYNC_MASTER"),
        ({"plugins.failover.coordinator": "etcd://127.0.0.1:2379"}, "plugins.ha.elected = true"),
    ],
)
def test_what_contradicts_is_found_before_the_start(keys: dict[str, str], words: str) -> None:
    """A store that cannot be made of the settings, and tables of plugins that contradict them."""
    try:
        found = [fault.text for fault in checks.examine(*loaded(**keys)).faults]
    except ConfigError as error:
        found = [fault.text for fault in error.faults]
    assert [words in text for text in found] == [True]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"enableCalcFilterBitMap": "true"}, "enableCalcFilterBitMap has no effect: "),
        ({"dispatchers": ""}, "cannot be read from queues"),
    ],
)
def test_settings_that_do_less_than_they_say_are_warned_of(keys: dict[str, str], words: str) -> None:
    """A start is possible with them."""
    config, registry = loaded(store="mmap", **keys)
    faults, warnings = checks.examine(config, registry)
    assert faults == []
    assert [words in warning.text for warning in warnings] == [True]


class CountedStores:
    """Makes stores like the store memory, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory]) -> None:
        def make(config: Config, clock: Clock, policy: FlushPolicy) -> MessageStore:
            self.made += 1
            return MemoryStore(config, clock, policy)

        register("counted", make)


async def test_a_start_makes_one_store(tmp_path: Path) -> None:
    """The store of a broker is made once, by the start, and once by an examination before: making it may cost
    something, or have effects that a second one would repeat."""
    plugin = CountedStores()
    async with running_broker(tmp_path, extra=[("counted", plugin)], store="counted"):
        assert plugin.made == 1
    checks.examine(*loaded(("counted", plugin), store="counted"))
    assert plugin.made == 2


async def test_a_store_refuses_its_settings_at_the_start(tmp_path: Path) -> None:
    """What an examination finds by making the store stops a start as well, which makes it later."""
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="consume queues")):
        async with running_broker(tmp_path, store="lmdb", dispatchers="index"):
            pytest.fail("it started")
