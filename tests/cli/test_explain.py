"""`rmqkit plugins --explain` shows which plugin is used for what, and why."""

from __future__ import annotations

import json
import types

import pytest

from rmqkit import hookimpl
from rmqkit.cli.explain import OFF, READY, USED, Use, explain
from rmqkit.config import load
from rmqkit.plugin.loader import load as load_plugins
from rmqkit.plugin.request_hooks import RpcHook
from tests.cli.conftest import Run
from tests.line_protocol import LinePlugin


def told(**keys: object) -> dict[tuple[str, str], Use]:
    config = load(environ={}, flags=keys)
    return {(use.kind, use.name): use for use in explain(config, load_plugins(config))}


@pytest.mark.parametrize(
    ("keys", "kind", "name", "state", "why"),
    [
        ({}, "store", "mmap", USED, "store = mmap (default)"),
        ({}, "store", "memory", READY, "store = mmap (default)"),
        ({"store": "memory"}, "store", "memory", USED, "store = memory (command line)"),
        ({}, "flush policy", "ASYNC_FLUSH", USED, "flushDiskType = ASYNC_FLUSH (default)"),
        (
            {"flushDiskType": "SYNC_FLUSH"},
            "flush policy",
            "SYNC_FLUSH",
            USED,
            "flushDiskType = SYNC_FLUSH (command line)",
        ),
        (
            {"transientStorePoolEnable": True},
            "flush policy",
            "ASYNC_FLUSH_BUFFERED",
            USED,
            "transientStorePoolEnable = true (command line)",
        ),
        (
            {},
            "transport",
            "tcp",
            USED,
            "listenPort = 10911 (default); namesrvListen = 127.0.0.1:9876 (default)",
        ),
        ({}, "transport", "tls", READY, "for addresses tls://..."),
        (
            {"listeners": "tls://127.0.0.1:1"},
            "transport",
            "tls",
            USED,
            "listeners = tls://127.0.0.1:1 (command line)",
        ),
        ({}, "service", "delay", USED, "order 10"),
        ({"disabledServices": "delay"}, "service", "delay", OFF, "disabledServices (command line)"),
        ({"disabledPlugins": "delay"}, "plugin", "delay", OFF, "disabledPlugins (command line)"),
        ({}, "plugin", "audit", OFF, "not named by the setting hooks"),
        ({}, "put message hook", "delay", USED, "order 100"),
        ({}, "allocation strategy", "AVG", READY, "registered under this name; no client calls it yet"),
        (
            {},
            "processors",
            "retention",
            USED,
            "registered with every broker, for the request codes it declares there",
        ),
    ],
)
def test_what_decided(keys: dict[str, object], kind: str, name: str, state: str, why: str) -> None:
    """The reason is the setting with its source, the default, or the order; for disabled ones it is the
    key."""
    use = told(**keys)[kind, name]
    assert use.state == state
    assert why in use.why


def test_dispatchers_have_places() -> None:
    """Plugins' dispatchers follow the store's own in the order of `dispatchers`; one that is not named is
    off."""

    def register_two(register: object, config: object) -> None:
        register("b", object())  # type: ignore[operator]
        register("a", object())  # type: ignore[operator]

    extra = [("two", types.SimpleNamespace(rmqkit_register_dispatchers=hookimpl(register_two)))]
    for setting, whys in (
        ("consume-queue,index,b,*", ["4 of 4", "3 of 4"]),
        ("consume-queue,a", ["2 of 2", "not named by dispatchers"]),
    ):
        config = load(environ={}, flags={"dispatchers": setting})
        uses = explain(config, load_plugins(config, extra=extra, entry_points=False))
        assert [use.name for use in uses] == ["a", "b"]
        assert all(why in use.why for use, why in zip(uses, whys, strict=True))


def test_hooks_have_places() -> None:
    """Hooks are listed in the order in which they run, across plugins."""

    def brings(*named: tuple[str, int]) -> object:
        def implementation(register: object) -> None:
            for name, order in named:
                register(name, RpcHook(), order=order)  # type: ignore[operator]

        return types.SimpleNamespace(rmqkit_register_rpc_hooks=hookimpl(implementation))

    config = load(environ={})
    extra = [("p", brings(("last", 9))), ("q", brings(("first", -1), ("middle", 0)))]
    uses = explain(config, load_plugins(config, extra=extra, entry_points=False))
    assert [(use.name, use.plugin, use.why) for use in uses] == [
        ("first", "q", "1 of 3, order -1"),
        ("middle", "q", "2 of 3, order 0"),
        ("last", "p", "3 of 3, order 9"),
    ]


def test_protocols_say_how_they_are_chosen() -> None:
    """A protocol at shared ports names them, its first bytes and its ALPN names; another one waits for its
    plugin."""
    config, shared, own = load(environ={}), LinePlugin(), LinePlugin()
    own.protocol.servers = frozenset()
    said = [
        [
            (use.state, use.why)
            for use in explain(config, load_plugins(config, extra=[("lines", plugin)]))
            if use.kind == "protocol" and use.plugin == "lines"
        ]
        for plugin in (shared, own)
    ]
    assert said == [
        [(USED, r"at the ports of broker, chosen by first bytes b'LINE\n' or ALPN line/1")],
        [(READY, "for addresses of its plugin")],
    ]


def test_table_and_json(rmqkit: Run) -> None:
    """Table and JSON have the same content."""
    table = rmqkit("plugins", "--explain", "--set", "store=memory").stdout.splitlines()
    assert table[0].split() == ["KIND", "NAME", "PLUGIN", "STATE", "WHY"]
    assert any(line.split()[:4] == ["store", "memory", "memory", "used"] for line in table)
    rows = json.loads(rmqkit("plugins", "--explain", "--json", "--set", "store=memory").stdout)
    assert {
        "kind": "store",
        "name": "memory",
        "plugin": "memory",
        "state": "used",
        "why": "store = memory (command line)",
    } in rows
    assert len(rows) == len(table) - 1
