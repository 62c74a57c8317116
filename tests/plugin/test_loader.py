"""Plugins: found, checked, sorted, and every fault named with the plugin that has it."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from rmqkit.config import Config
from rmqkit.errors import ConfigError, PluginError
from rmqkit.plugin import hookspecs, loader
from rmqkit.plugin.hookspecs import PROJECT, Register, hookimpl
from rmqkit.plugin.loader import load
from rmqkit.plugin.protocols import ProtocolConnection, WireProtocol

NOTHING = Config()


class Named:
    """A hook that can be told from another."""

    def __init__(self, name: str) -> None:
        self.name = name


def plugin(kind: str, *things: tuple[str, object, int]) -> object:
    """A plugin that registers things of one kind."""

    def implementation(register: Register[object], config: Config) -> None:
        for name, thing, order in things:
            register(name, thing, order=order)

    holder = types.SimpleNamespace()
    setattr(holder, f"rmqkit_register_{kind}", hookimpl(implementation))
    return holder


def alone(*extra: tuple[str, object], config: Config = NOTHING) -> loader.Registry:
    """A registry of these plugins only."""
    return load(config, extra=extra, entry_points=False)


def plain(table: object) -> object:
    """A table of a registry, whose things are plain values in these tests."""
    return table


class FakeDistribution(Distribution):
    """An installed package that is not there: its metadata and entry points."""

    def __init__(self, name: str, *points: str, version: str = "1.2", requires: Iterable[str] = ()) -> None:
        needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            "entry_points.txt": (
                "[other]\nignored = nowhere:nothing\n[rmqkit]\n" + "".join(f"{point}\n" for point in points)
            ),
        }

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: object) -> typing.Any:
        return Path(str(path))


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replace what is installed."""

    def put(*found: Distribution) -> None:
        monkeypatch.setattr(loader, "installed_packages", lambda: loader.packages_of(found))

    return put


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Write importable modules that are gone afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


SOURCE = """
from rmqkit.plugin.hookspecs import hookimpl

@hookimpl
def rmqkit_register_stores(register, config):
    register("{name}", object())
"""


def test_only_some(modules: Callable[[str, str], None], install: Install) -> None:
    """The others are found and not imported; services that they have may be disabled all the same."""
    modules("wanted", SOURCE.format(name="wanted"))
    modules("unwanted", "raise LookupError")
    install(FakeDistribution("both", "wanted = wanted", "unwanted = unwanted"))
    registry = load(Config(disabled_services=("of-unwanted",)), only=["wanted"])
    assert set(registry.stores) == {"wanted"}
    assert {each.name: each.enabled for each in registry.plugins} == {"wanted": True, "unwanted": False}
    assert "unwanted" not in sys.modules


def test_nothing() -> None:
    """Without plugins every table is empty, and the error for what is missing says so."""
    registry = alone()
    assert (registry.stores, registry.dispatchers, registry.plugins) == ({}, {}, ())
    with pytest.raises(PluginError, match="no plugin brings 'mmap' among the stores; there are: none"):
        registry.chosen("stores", "mmap")


def test_extra_plugins() -> None:
    """A plugin handed in is used like an installed one, and the registry tells what it brought."""
    registry = alone(("mine", plugin("stores", ("mem", "a store", 0), ("disk", "another", 0))))
    assert plain(registry.stores) == {"disk": "another", "mem": "a store"}
    assert registry.chosen("stores", "mem") == "a store"
    (found,) = registry.plugins
    assert (found.name, found.enabled, found.registers) == ("mine", True, ["store: mem", "store: disk"])
    with pytest.raises(PluginError, match="among the flush policies; there are: none"):
        registry.chosen("flush_policies", "ASYNC_FLUSH")
    with pytest.raises(PluginError, match="'lmdb' among the stores; there are: disk, mem"):
        registry.chosen("stores", "lmdb")


class Silent(WireProtocol):
    """A protocol with these prefixes."""

    name = "silent"

    def __init__(self, *prefixes: bytes) -> None:
        self.prefixes = prefixes

    async def serve(self, connection: ProtocolConnection) -> None:
        raise NotImplementedError


def test_all_protocols_that_ports_cannot_tell_apart_are_named() -> None:
    """The start reports wrong prefixes of every protocol, and protocols that begin alike."""
    wrong = [("a", Silent(b"\x00"), 0), ("b", Silent(b"GET"), 0), ("c", Silent(b"GET /"), 0)]
    with pytest.raises(PluginError) as info:
        alone(("mine", plugin("protocols", *wrong)))
    assert "a frame of remoting may begin so" in str(info.value)
    assert "both begin with b'GET /'" in str(info.value)


@pytest.mark.parametrize("kind", sorted(loader._KINDS))
def test_every_kind(kind: str) -> None:
    """What is registered by a hook of a kind is found under that kind: hooks as a tuple, the rest by name."""
    thing = {"settings": Struct, "protocols": Silent()}.get(kind, object())
    value = getattr(alone(("mine", plugin(kind, ("x", thing, 0)))), kind)
    assert list(value) == [thing] if kind in loader._HOOKS else value == {"x": thing}


def test_every_register_hook_is_compiled() -> None:
    """No register hook is declared and then never called. Processors are registered when a broker is
    assembled."""
    declared = {
        name.removeprefix("rmqkit_register_")
        for name in vars(hookspecs)
        if name.startswith("rmqkit_register_")
    }
    assert declared == set(loader._KINDS) | {"processors"}


@pytest.mark.parametrize("kind", ["send_message_hooks", "rpc_hooks", "dispatchers", "services"])
def test_order(kind: str) -> None:
    """Lower order first, then by name, whichever plugin it came from and in whatever order they were
    loaded."""
    one = plugin(kind, ("z", Named("z"), -5), ("b", Named("b"), 0), ("last", Named("last"), 10))
    two = plugin(kind, ("a", Named("a"), 0), ("y", Named("y"), -5))
    for pair in ((("p", one), ("q", two)), (("q", two), ("p", one))):
        value = getattr(alone(*pair), kind)
        things = list(value.values()) if isinstance(value, dict) else list(value)
        assert [thing.name for thing in things] == ["y", "z", "a", "b", "last"]


def test_disabled_plugin() -> None:
    """A disabled plugin is listed but brings nothing, and is not even imported."""
    config = Config(disabled_plugins=("off",))
    registry = alone(
        ("off", plugin("stores", ("x", 1, 0))), ("on", plugin("stores", ("x", 2, 0))), config=config
    )
    assert plain(registry.stores) == {"x": 2}
    assert [(found.name, found.enabled, found.registers) for found in registry.plugins] == [
        ("off", False, []),
        ("on", True, ["store: x"]),
    ]


def test_disabled_plugin_is_not_imported(install: Install) -> None:
    """A plugin that cannot be imported does no harm once it is disabled."""
    install(FakeDistribution("broken", "broken = rmqkit_no_such_module"))
    registry = load(Config(disabled_plugins=("broken",)))
    assert [(found.name, found.package, found.version, found.enabled) for found in registry.plugins] == [
        ("broken", "broken", "1.2", False)
    ]


def test_unknown_disabled_plugin() -> None:
    """Disabling what does not exist is a misspelling: the error lists what there is."""
    with pytest.raises(PluginError, match="names 'misspelt', but there is no such plugin; there are: a, b"):
        alone(
            ("b", plugin("stores")),
            ("a", plugin("stores")),
            config=Config(disabled_plugins=("a", "misspelt")),
        )


def test_two_plugins_of_one_name(install: Install) -> None:
    """Two plugins of one name, installed or handed in, are an error, even when that name is disabled."""
    with pytest.raises(PluginError, match="two plugins are called 'x'"):
        alone(("x", plugin("stores")), ("x", plugin("stores")))
    install(FakeDistribution("one", "x = sys"), FakeDistribution("two", "x = os"))
    with pytest.raises(PluginError, match="two plugins are called 'x'"):
        load(Config(disabled_plugins=("x",)))


def test_one_plugin_under_two_names() -> None:
    """The same object cannot be two plugins."""
    same = plugin("stores", ("s", 1, 0))
    with pytest.raises(PluginError, match="'b'"):
        alone(("a", same), ("b", same))


def test_two_things_of_one_name() -> None:
    """Two plugins that register one name are both named, with the way out; two kinds may share a name."""
    with pytest.raises(
        PluginError, match=r"store 'mmap' is registered by the plugins '[pq]' and '[pq]'.*disabledPlugins"
    ):
        alone(("p", plugin("stores", ("mmap", 1, 0))), ("q", plugin("stores", ("mmap", 2, 0))))
    with pytest.raises(PluginError, match="'p' and 'p'"):
        alone(("p", plugin("rpc_hooks", ("twice", 1, 0), ("twice", 2, 0))))
    registry = alone(("p", plugin("stores", ("tcp", 1, 0))), ("q", plugin("transports", ("tcp", 2, 0))))
    assert (plain(registry.stores), plain(registry.transports)) == ({"tcp": 1}, {"tcp": 2})


def test_misspelt_hook() -> None:
    """A hook nobody calls is an error that names hook and plugin."""
    with pytest.raises(PluginError, match="rmqkit_register_stroes"):
        alone(("mine", plugin("stroes", ("x", 1, 0))))


def test_misspelt_hook_has_a_neighbour() -> None:
    """The error names the hook that was probably meant; a hook that says it is optional may be unknown."""
    with pytest.raises(
        PluginError,
        match=r"plugin 'mine' has a hook rmqkit_register_stroes.*did you mean 'rmqkit_register_stores'",
    ):
        alone(("mine", plugin("stroes")))
    later = types.SimpleNamespace(rmqkit_of_a_later_version=hookimpl(lambda: None, optionalhook=True))
    assert [found.name for found in alone(("mine", later)).plugins] == ["mine"]


def test_everything_that_is_wrong_is_told_at_once(install: Install) -> None:
    """One start, all faults, each with the setting it is about."""
    install(FakeDistribution("broken", "a = rmqkit_no_such_module"), FakeDistribution("other", "a = sys"))
    config = Config(disabled_plugins=("momory",), hooks=("adit",), plugins={"b": {}})
    with pytest.raises(PluginError) as caught:
        load(config, extra=[("memory", plugin("stroes"))])
    assert [fault.key for fault in caught.value.faults] == [
        "",
        "",
        "disabledPlugins",
        "hooks",
        "plugins.b",
        "",
    ]
    for part in (
        "'a' of broken cannot",
        "two plugins are called 'a' (of broken and other)",
        "did you mean 'memory'",
        "'adit'",
        "stroes",
    ):
        assert part in str(caught.value)


def test_all_that_cannot_be_registered_is_told_at_once() -> None:
    """A clash, a plugin's settings and a hook that fails by itself are told together; the latter with
    plugin and hook."""

    class Settings(msgspec.Struct, frozen=True):
        size: int = 1

    def reads(register: object, config: Config) -> None:
        config.plugin_settings("settings", Settings)

    def fails(register: object) -> None:
        raise ZeroDivisionError("no data")

    extra = [("one", plugin("stores", ("x", 1, 0))), ("two", plugin("stores", ("x", 2, 0)))]
    extra += [("settings", types.SimpleNamespace(rmqkit_register_services=hookimpl(reads)))]
    extra += [
        (
            "fails",
            types.SimpleNamespace(
                rmqkit_register_commands=hookimpl(fails, specname="rmqkit_register_commands")
            ),
        )
    ]
    config = Config(
        plugins={"settings": {"sise": 1}},
        sources={"plugins.settings.sise": "file x"},
        disabled_services=("none",),
    )
    with pytest.raises(PluginError) as caught:
        alone(*extra, config=config)
    assert [fault.key for fault in caught.value.faults] == [
        "",
        "plugins.settings.sise",
        "",
        "disabledServices",
    ]
    for part in (
        "store 'x' is registered",
        "did you mean 'size'?",
        "plugin 'fails': its hook fails failed: ZeroDivisionError: no data",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("wanted", [hookspecs.API - 1, 0, str(hookspecs.API), None])
def test_plugin_for_another_kernel(wanted: object) -> None:
    """A plugin that says for which interface it was made is refused by another kernel, with both versions
    and the way out."""
    made_for_another = types.SimpleNamespace(rmqkit_api=wanted)
    with pytest.raises(
        PluginError,
        match=(
            f"plugin 'new' of types is made for version {wanted!r} of the plugin interface, "
            f"this rmqkit has {hookspecs.API}"
        ),
    ):
        alone(("new", made_for_another))
    assert (
        alone(("new", made_for_another), config=Config(disabled_plugins=("new",))).plugins[0].enabled is False
    )
    assert alone(("fits", types.SimpleNamespace(rmqkit_api=hookspecs.API))).plugins[0].enabled


@pytest.mark.parametrize(
    ("requires", "imported", "hint"),
    [
        (
            ["h11>=0.14 ; extra == 'metrics'", "h11 ; extra == 'all'", "x ; extra == 'all'"],
            "rmqkit_gone_h11",
            "install what it needs",
        ),
        (
            ["rmqkit-gone>=0.14 ; extra == 'all'", "x; extra == 'all'", "rmqkit-gone; extra == 'quic'"],
            "rmqkit_gone",
            "install broken[quic]",
        ),
        (
            ['rmqkit-gone-api>=1 ; python_version > "3" and extra == "otel"'],
            "rmqkit_gone.trace",
            "install broken[otel]",
        ),
        (["rmqkit-gone"], "rmqkit_gone", "install what it needs"),
    ],
)
def test_missing_extra(
    install: Install, modules: Callable[[str, str], None], requires: list[str], imported: str, hint: str
) -> None:
    """A plugin whose optional requirement is missing says which extra to install: the smallest one that
    has it."""
    modules("rmqkit_test_extra", f"import {imported}")
    install(FakeDistribution("broken", "p = rmqkit_test_extra", requires=requires))
    with pytest.raises(PluginError) as caught:
        load(NOTHING)
    assert hint in str(caught.value)


def test_registrations() -> None:
    """What is registered is told kind by kind in running order, with who brought it."""
    pair = (
        ("p", plugin("rpc_hooks", ("late", 1, 5), ("early", 2, -5))),
        ("q", plugin("rpc_hooks", ("mid", 3, 0))),
    )
    told = [(entry.kind, entry.name, entry.plugin, entry.order) for entry in alone(*pair).registrations]
    assert told == [("rpc hook", "early", "p", -5), ("rpc hook", "mid", "q", 0), ("rpc hook", "late", "p", 5)]


def test_hook_with_an_unknown_argument() -> None:
    """A hook that asks for an argument it is never given is an error."""

    def implementation(register: object, settings: object) -> None:
        raise AssertionError("never called")

    holder = types.SimpleNamespace(rmqkit_register_stores=hookimpl(implementation))
    with pytest.raises(PluginError, match=r"(?s)mine.*settings"):
        alone(("mine", holder))


@pytest.mark.parametrize("mark", ["wrapper", "hookwrapper"])
def test_wrapper(mark: str) -> None:
    """A wrapper around a register hook would never run: an error."""

    def implementation() -> Iterator[None]:
        yield

    marked = hookimpl(wrapper=mark == "wrapper", hookwrapper=mark == "hookwrapper")(implementation)
    holder = types.SimpleNamespace(rmqkit_register_stores=marked)
    with pytest.raises(PluginError, match="cannot be a wrapper"):
        alone(("mine", holder))


def test_hooks_take_what_they_need() -> None:
    """A hook may leave arguments out; what it takes is passed by name."""
    seen: list[object] = []

    def implementation(config: Config) -> None:
        seen.append(config)

    config = Config(broker_name="b-9")
    alone(("mine", types.SimpleNamespace(rmqkit_register_services=hookimpl(implementation))), config=config)
    assert seen == [config]


def test_entry_points(install: Install, modules: Callable[[str, str], None]) -> None:
    """Installed plugins are found by their entry point, with package and version; entry_points=False
    leaves them out."""
    modules("rmqkit_test_installed", SOURCE.format(name="found"))
    install(
        FakeDistribution("some-package", "installed = rmqkit_test_installed", version="3.4"),
        FakeDistribution("unrelated"),
    )
    registry = load(NOTHING, extra=[("extra", plugin("stores", ("more", 1, 0)))])
    assert set(registry.stores) == {"found", "more"}
    first = registry.plugins[0]
    assert (first.name, first.package, first.version) == ("installed", "some-package", "3.4")
    assert [found.name for found in registry.plugins] == ["installed", "extra"]
    assert alone().plugins == ()


def test_distribution_found_twice(install: Install, modules: Callable[[str, str], None]) -> None:
    """A package that stands on the path twice, however its name is written, counts once, the first."""
    modules("rmqkit_test_twice", SOURCE.format(name="once"))
    install(
        *(
            FakeDistribution(name, "p = rmqkit_test_twice", version=version)
            for name, version in (("a-b", "2"), ("A_b", "1"))
        )
    )
    registry = load(NOTHING)
    assert [(found.package, found.version) for found in registry.plugins] == [("a-b", "2")]


@pytest.mark.parametrize(
    ("source", "point", "why"),
    [
        (None, "bad = rmqkit_test_missing", "ModuleNotFoundError"),
        ("import rmqkit_test_needs_this", "bad = rmqkit_test_broken", "rmqkit_test_needs_this"),
        ("x = 1", "bad = rmqkit_test_broken:absent", "AttributeError"),
        ("def broken(:\n", "bad = rmqkit_test_broken", "SyntaxError"),
        ("raise RuntimeError('no GPU')", "bad = rmqkit_test_broken", "RuntimeError: no GPU"),
    ],
)
def test_broken_import(
    install: Install, modules: Callable[[str, str], None], source: str | None, point: str, why: str
) -> None:
    """A plugin that cannot be loaded, for whatever reason, is named with its package, the reason and the
    way out."""
    if source is not None:
        modules("rmqkit_test_broken", source)
    install(FakeDistribution("broken-package", point))
    with pytest.raises(
        PluginError, match=f"plugin 'bad' of broken-package cannot be loaded: .*{why}"
    ) as caught:
        load(NOTHING)
    assert "disabledPlugins" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value, ConfigError)


def test_registries_are_apart() -> None:
    """Two brokers of one process may have different plugins: nothing is global."""
    first, second = alone(("p", plugin("stores", ("x", 1, 0)))), alone(("q", plugin("stores", ("x", 2, 0))))
    assert (plain(first.stores), plain(second.stores)) == ({"x": 1}, {"x": 2})
    assert first.manager is not second.manager


def test_real_metadata() -> None:
    """The distributions of this environment can be searched; what carries our entry points is listed once."""
    groups = (loader.ENTRY_POINT_GROUP, loader.OPTIONAL_GROUP)
    names = [point.name for found in distributions() for point in found.entry_points if point.group in groups]
    listed = [found.name for found in load(Config(disabled_plugins=tuple(set(names)))).plugins]
    assert sorted(listed) == sorted(set(names))


def test_what_is_installed_later_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The search is repeated when a folder of the path changes, and only then."""
    monkeypatch.syspath_prepend(tmp_path)
    before = loader.installed_packages()
    assert loader.installed_packages() is before
    metadata = tmp_path / "rmqkit_test_late-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rmqkit-test-late\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{loader.ENTRY_POINT_GROUP}]\nlate = nowhere:nothing\n")
    os.utime(tmp_path, ns=(0, 1))  # two changes within one step of the file system's clock look like one
    assert {package.name for package in loader.installed_packages()} == {
        *(package.name for package in before),
        "rmqkit-test-late",
    }


SPECS = {name: value for name, value in vars(hookspecs).items() if hasattr(value, f"{PROJECT}_spec")}


def test_specs_are_there() -> None:
    """The hooks are those of the design's list of extension points."""
    kinds = (
        "stores store_tools transports flush_policies ack_conditions dispatchers allocation_strategies"
        " filter_servers filter_indexes"
        " processors queue_codes topic_attributes group_attributes services servers protocols commands"
        " settings"
    )
    hooks = "send_message_hooks consume_message_hooks rpc_hooks call_hooks put_message_hooks"
    expected = {f"rmqkit_register_{kind}" for kind in (kinds + " " + hooks).split()} | {
        "rmqkit_broker_assembled",
        "rmqkit_broker_started",
        "rmqkit_broker_stopping",
    }
    assert set(SPECS) == expected


@pytest.mark.parametrize("name", SPECS)
def test_spec_is_documented(name: str) -> None:
    """Every hook says when it is called and shows an example; a register hook's example registers
    something."""
    text = inspect.getdoc(SPECS[name])
    assert text is not None
    about, _, example = " ".join(text.split()).partition("Example: ")
    assert len(about) > 20
    assert len(example) > 10
    if name.startswith("rmqkit_register_"):
        assert example.startswith("register(")
        compile(example.rstrip("."), name, "eval")


@pytest.mark.parametrize("name", SPECS)
def test_spec_is_typed(name: str) -> None:
    """Every hook has a typed signature: all arguments annotated, nothing returned, and a register hook's
    first argument is a Register."""
    signature = inspect.signature(SPECS[name])
    assert signature.return_annotation == "None"
    assert signature.parameters
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert parameter.annotation not in ("Any", "object")
        assert parameter.default is inspect.Parameter.empty
    first = next(iter(signature.parameters.values()))
    if name.startswith("rmqkit_register_"):
        assert first.name == "register"
        assert str(first.annotation).startswith("Register")
        imported = set(
            inspect.getsource(hookspecs)
            .split("if TYPE_CHECKING:")[1]
            .split("PROJECT")[0]
            .replace(",", " ")
            .split()
        )
        kind = str(first.annotation).partition("[")[2].rstrip("]")
        assert not kind or kind in imported | {"type"}
    else:
        assert first.annotation == "RequestBroker"


def test_the_metadata_of_a_distribution_are_parsed_once(install: Install) -> None:
    """However many plugins it brings: a parse takes longer than everything else that is done for a plugin."""
    parsed: list[str] = []

    class Counting(FakeDistribution):
        def read_text(self, filename: str) -> str | None:
            if filename == "METADATA":
                parsed.append(filename)
            return super().read_text(filename)

    names = tuple(f"p{number}" for number in range(9))
    install(Counting("many", *(f"{name} = types" for name in names)))
    found = load(Config(disabled_plugins=names)).plugins
    assert [(plugin.name, plugin.version) for plugin in found] == [(name, "1.2") for name in names]
    assert len(parsed) == 1


def test_hooks_of_any_form_are_found_in_a_module(modules: Callable[[str, str], None]) -> None:
    """A function, a bound method of an object, and a static method under the name of a hook; other things
    of that name are none."""
    modules(
        "rmqkit_test_forms",
        "from rmqkit import hookimpl\n"
        "class Made:\n"
        "    @hookimpl\n"
        "    def rmqkit_register_stores(self, register): register('bound', 1)\n"
        "rmqkit_register_stores = Made().rmqkit_register_stores\n"
        "@hookimpl\n"
        "def rmqkit_register_transports(register): register('plain', 2)\n"
        "@staticmethod\n"
        "@hookimpl\n"
        "def rmqkit_register_services(register): register('static', 3)\n"
        "rmqkit_register_settings = 'no hook'\n",
    )
    registry = alone(("forms", importlib.import_module("rmqkit_test_forms")))
    assert (set(registry.stores), set(registry.transports), set(registry.services)) == (
        {"bound"},
        {"plain"},
        {"static"},
    )
