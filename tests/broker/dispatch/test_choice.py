"""The setting `dispatchers`: selection, order, and replacement of the store's own parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from rmqkit import hookimpl
from rmqkit.broker.dispatch.manager import choose, first_of
from rmqkit.broker.run import assemble
from rmqkit.config import Config
from rmqkit.errors import ConfigError, PluginError
from rmqkit.plugin import loader
from rmqkit.plugin.dispatcher import LogFollower
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import KeyLookup, MessageStore, NoKeys, NoQueues, QueueLookup
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.lookups import KeyLists, QueueLists
from rmqkit.testing.store import FlushWhenWanted
from rmqkit_store_memory.store import MemoryStore
from tests.broker.kit import config_of
from tests.counting import SlowCounter, Volatile


@define
class Brings:
    """A plugin that registers dispatchers, in the order of their names."""

    dispatchers: Mapping[str, Any]

    @hookimpl
    def rmqkit_register_dispatchers(self, register: Register[LogFollower], config: Config) -> None:
        for name, dispatcher in self.dispatchers.items():
            register(name, dispatcher)


def chosen(config: Config, **dispatchers: object) -> list[str]:
    return list(
        choose(config, loader.load(config, extra=[("mine", Brings(dispatchers))], entry_points=False))
    )


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["b", "a", "c"]),
        ("consume-queue,index,*", ["b", "a", "c"]),
        ("*", ["b", "a", "c"]),
        ("consume-queue, c, *", ["c", "b", "a"]),
        ("index;*;b", ["a", "c", "b"]),
        ("consume-queue,index", []),
        ("a", ["a"]),
        ("", []),
    ],
)
def test_the_setting_names_dispatchers_and_their_order(setting: str | None, expected: list[str]) -> None:
    """`*` stands for all that are not named, by `order` and name; a name that is left out is off. The
    store's own are not the plugins'."""
    registry = loader.load(
        Config(), extra=[("mine", Brings({"a": 1})), ("others", Other())], entry_points=False
    )
    assert (
        list(choose(config_of(**({} if setting is None else {"dispatchers": setting})), registry)) == expected
    )


class Other:
    @hookimpl
    def rmqkit_register_dispatchers(self, register: Register[Any]) -> None:
        register("c", 3, order=5)
        register("b", 2, order=-5)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (
            "consume-queue,conter",
            (
                r"there is no dispatcher 'conter'; did you mean 'counter'\? There are: consume-queue, index,"
                r" counter"
            ),
        ),
        ("consumequeue", "did you mean 'consume-queue'"),
        ("zzz", r"\(command line\): there is no dispatcher 'zzz'. There are"),
    ],
)
def test_an_unknown_name_is_an_error(setting: str, text: str) -> None:
    """The error names the nearest one and all known ones."""
    with pytest.raises(ConfigError, match=text):
        chosen(config_of(dispatchers=setting), counter=Volatile())


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("a,b,a", "names one twice"),
        ("index,consume-queue", "must begin with consume-queue, index"),
        ("a,index", "must begin with index"),
    ],
)
def test_orders_that_cannot_be(setting: str, text: str) -> None:
    """The store's own dispatchers come first, the queues before the index."""
    with pytest.raises(ConfigError, match=f"setting dispatchers = .*: {text}"):
        config_of(dispatchers=setting)


@pytest.mark.parametrize("name", ["consume-queue", "index", "*"])
def test_names_of_the_stores_own_are_taken(name: str) -> None:
    """A plugin uses another name for a replacement, which the settings must list."""
    with pytest.raises(PluginError, match="plugin 'mine' registers a dispatcher"):
        chosen(Config(), **{name: Volatile()})


def test_the_first_look_up_that_is_on_serves() -> None:
    """A look-up that would answer late is refused."""

    class Late(SlowCounter, NoKeys):
        pass

    first, second = KeyLists(), KeyLists()
    assert first_of(KeyLookup, [Volatile(), first, second]) is first  # type: ignore[type-abstract]
    assert first_of(QueueLookup, [first]) is None  # type: ignore[type-abstract]
    with pytest.raises(PluginError, match="Late cannot serve as KeyLookup"):
        first_of(KeyLookup, [Late(Path())])  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    ("keys", "queues_from", "keys_from"),
    [
        ({}, None, None),
        ({"dispatchers": "consume-queue,index,keys,queues"}, None, None),
        ({"dispatchers": "consume-queue,*"}, None, KeyLists),
        ({"dispatchers": "index,*"}, QueueLists, None),
        ({"dispatchers": ""}, NoQueues, NoKeys),
        ({"messageIndexEnable": "false"}, None, KeyLists),
        ({"messageIndexEnable": "false", "dispatchers": "consume-queue,index"}, None, NoKeys),
    ],
)
def test_what_a_store_leaves_out(
    keys: dict[str, str], queues_from: type | None, keys_from: type | None, tmp_path: Path
) -> None:
    """Missing queues or index are provided by the first suitable plugin, else by none."""
    config = config_of(store="memory", storePathRootDir=str(tmp_path), **keys)
    registry = loader.load(config, extra=[("mine", Brings({"keys": KeyLists(), "queues": QueueLists()}))])
    store, _ = assemble.make_store(config, registry, FakeClock())
    assert isinstance(store, MemoryStore)
    assert isinstance(store._queue_lookup, queues_from or type(None))
    assert isinstance(store._key_lookup, keys_from or type(None))


def test_a_store_that_cannot_leave_them_out() -> None:
    """The store reports it, and the broker does not start."""
    store = MemoryStore(config_of(), FakeClock(), FlushWhenWanted())
    with pytest.raises(ConfigError, match="name consume-queue in dispatchers"):
        MessageStore.use_external_consume_queue(store, NoQueues())
    with pytest.raises(ConfigError, match="name index in dispatchers"):
        MessageStore.use_external_index(store, NoKeys())
