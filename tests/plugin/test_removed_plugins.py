"""The kernel without one of the built-in plugins: it starts, or says what is missing, and its refusals name
what is missing. The kernel's own text names no plugin."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from attrs import evolve

import rmqkit
from rmqkit.broker.run import checks
from rmqkit.config import load
from rmqkit.errors import ConfigError
from rmqkit.model import properties as props
from rmqkit.plugin import loader
from rmqkit.plugin.request import FILTER_SERVER, NAME_SERVER
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import CreateTopicRequestHeader
from rmqkit.testing.broker import test_config as settings_of
from tests.broker.desk import BrokerHarness, open_desk

BUILT_IN = {
    point.name
    for group in (loader.ENTRY_POINT_GROUP, loader.OPTIONAL_GROUP)
    for point in entry_points(group=group)
    if point.dist is not None and point.dist.metadata["Name"] == "rmqkit"
}

pytestmark = [
    pytest.mark.only_store(why="the memory store is needed where another plugin is removed"),
    pytest.mark.only_transport(why="without connections"),
]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Take a plugin out of the entry points that the loader sees."""

    def remove(name: str) -> None:
        assert name in BUILT_IN
        left = [
            evolve(package, points=tuple(point for point in package.points if point.name != name))
            for package in loader.installed_packages()
        ]
        monkeypatch.setattr(loader, "installed_packages", lambda: left)

    return remove


#: Plugin -> settings that need it, and the error of the start without it.
ASKED_FOR = {
    "memory": ({"store": "memory"}, "no plugin brings 'memory' among the stores"),
    "mmap": ({"store": "mmap"}, "no plugin brings 'mmap' among the stores"),
    "lmdb": ({"store": "lmdb"}, "no plugin brings 'lmdb' among the stores"),
    "tcp": ({"listeners": "tls://127.0.0.1:1"}, "no plugin brings 'tls' among the transports"),
    "unix": ({"listeners": "unix:///run/x"}, "no plugin brings 'unix' among the transports"),
    "quic": ({"listeners": "quic://127.0.0.1:1"}, "no plugin brings 'quic' among the transports"),
    "memory-pipes": ({"listeners": "memory://x"}, "no plugin brings 'memory' among the transports"),
    "flush": ({"flushDiskType": "SYNC_FLUSH"}, "no plugin brings 'SYNC_FLUSH' among the flush policies"),
    "ha": ({"brokerRole": "SYNC_MASTER"}, "setting brokerRole = 'SYNC_MASTER' .*"),
    "failover": (
        {"plugins.failover.coordinator": "etcd://127.0.0.1:1"},
        r"\[plugins.NAME\] .* names 'failover', but there is no such plugin",
    ),
    "grpc": (
        {"plugins.grpc.listen": "127.0.0.1:1"},
        r"\[plugins.NAME\] .* names 'grpc', but there is no such plugin",
    ),
    "acl": (
        {"authenticationEnabled": "true"},
        "setting authenticationEnabled = 'true' .*the plugin acl is off",
    ),
    "audit": ({"hooks": "audit"}, "setting hooks .* names 'audit', but there is no such plugin"),
    "quota": ({"hooks": "quota"}, "setting hooks .* names 'quota', but there is no such plugin"),
    "trace": ({"hooks": "trace"}, "setting hooks .* names 'trace', but there is no such plugin"),
}
#: Plugin -> a setting that needs it, without which a start is possible.
MISSED = {
    "filter-server": {"filterServerNums": "2"},
    "metrics": {"metricsExporterType": "PROM"},
    "protection": {"disableConsumeIfConsumerReadSlowly": "true"},
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_start_that_asks_for_a_removed_plugin_is_refused(
    without: Callable[[str], None], tmp_path: Path, name: str
) -> None:
    """The error names the setting's value that nothing serves; nothing has been opened."""
    keys, said = ASKED_FOR[name]
    without(name)
    config = load(environ={}, flags={"storePathRootDir": str(tmp_path / "data")} | keys)
    with pytest.raises(ConfigError, match=said):
        checks.check(config, loader.load(config))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", MISSED)
def test_a_start_that_misses_a_removed_plugin_is_warned(without: Callable[[str], None], name: str) -> None:
    """The feature is merely off; the warning names the setting and the reason."""
    without(name)
    config = load(environ={}, flags=MISSED[name])
    registry = loader.load(config)
    (key,) = MISSED[name]
    faults, warnings = checks.examine(config, registry)
    assert faults == []
    assert [(each.key, "has no effect here" in each.text) for each in warnings] == [(key, True)]


async def _filtered(desk: BrokerHarness) -> Command:
    await desk.sent(body=b"x")
    return await desk.pull(subscription="a || b")


async def _delayed(desk: BrokerHarness) -> Command:
    return await desk.send("T", properties={props.DELAY: "1"})


async def _timed(desk: BrokerHarness) -> Command:
    return await desk.send("T", properties={props.TIMER_DELAY_SEC: "1"})


async def _cleaned(desk: BrokerHarness) -> Command:
    return await desk.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)


async def _asked_for_replicas(desk: BrokerHarness) -> Command:
    return await desk.ask(RequestCode.GET_BROKER_HA_STATUS)


async def _popped(desk: BrokerHarness) -> Command:
    return await desk.ask(RequestCode.POP_MESSAGE)


async def _prepared(desk: BrokerHarness) -> Command:
    return await desk.send("T", properties={props.TRANSACTION_PREPARED: "true"})


async def _windowed(desk: BrokerHarness) -> Command:
    header = CreateTopicRequestHeader(
        topic="Once", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG",
        order=False, attributes="+dedup.window=10m", default_topic="TBW102",
    )  # fmt: skip
    return await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def _registered(desk: BrokerHarness) -> Command:
    return await desk.ask(RequestCode.REGISTER_FILTER_SERVER)


#: Plugin that a broker can start without -> a request that needs it, and the answer.
REFUSED = {
    "filter": (_filtered, ResponseCode.SYSTEM_ERROR, "no plugin filters by expressions of type 'TAG'"),
    "dedup": (_windowed, ResponseCode.SYSTEM_ERROR, "unsupported key: dedup.window"),
    "delay": (_delayed, ResponseCode.MESSAGE_ILLEGAL, "delay"),
    "pop": (_popped, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "pop consumption"),
    "transaction": (_prepared, ResponseCode.NO_PERMISSION, "transactional messages"),
    "timer": (_timed, ResponseCode.MESSAGE_ILLEGAL, "delivery at a time"),
    "filter-server": (_registered, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "plugin filter-server"),
    "ha": (_asked_for_replicas, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "plugin ha"),
    "retention": (_cleaned, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "plugin retention"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_a_request_that_needs_a_removed_plugin_is_refused(
    without: Callable[[str], None], tmp_path: Path, name: str
) -> None:
    """The broker starts, and the remark of the refusal names what is missing."""
    ask, code, remark = REFUSED[name]
    without(name)
    async with open_desk(tmp_path) as desk:
        assert (await desk.send("T")).code == 0
        refused = await ask(desk)
        assert (refused.code, remark in (refused.remark or "")) == (code, True), refused.remark


@pytest.mark.parametrize("name", sorted(BUILT_IN - {"memory", "tcp", "flush"}))
async def test_a_broker_works_without_a_plugin_that_it_does_not_ask_for(
    without: Callable[[str], None], tmp_path: Path, name: str
) -> None:
    """Messages are stored and pulled, and no RocketMQ setting that the plugin owns stops the start."""
    without(name)
    async with open_desk(tmp_path) as desk:
        assert name not in {plugin.name for plugin in desk.broker.registry.plugins}
        await desk.sent(body=b"kept")
        assert [message.body for message in desk.stored("T", 0)] == [b"kept"]


@pytest.mark.parametrize("kind", ["servers", "services", "allocation_strategies"])
def test_what_is_looked_up_by_name_is_missed_by_name(without: Callable[[str], None], kind: str) -> None:
    """The roles, services and strategies of a removed plugin are missing, and a failed look-up lists the
    known names."""
    plugin, thing = {
        "servers": ("namesrv", "namesrv"),
        "services": ("registration", "registration"),
        "allocation_strategies": ("allocation", "AVG"),
    }[kind]
    without(plugin)
    registry = loader.load(settings_of(Path("data")))
    with pytest.raises(ConfigError, match=f"no plugin brings {thing!r}"):
        registry.chosen(kind, thing)


def test_every_built_in_plugin_is_removed_by_some_test() -> None:
    """A new plugin needs a case in this module."""
    looked_up = {"namesrv", "registration", "allocation"}
    # A setting of Apache's proxy, not of brokers, and a command.
    only_works_without = {"message-type", "console"}
    others = looked_up | only_works_without
    assert ASKED_FOR.keys() | MISSED.keys() | REFUSED.keys() | others == BUILT_IN


#: Names that mean something else in the kernel: the scheme of addresses without one, process roles, an
#: option of consumers, and a kind of requests.
OTHER_MEANINGS = {"tcp", NAME_SERVER, FILTER_SERVER, "allocation", "transaction"}
#: Names that are not words of English.
COINED = {"ha", "lmdb", "mmap", "quic"}
#: What only a plugin knows: its expression types and settings.
FEATURES = {"filter": "SQL92|[Bb]loom", "mmap": "enable_consume_queue_ext"}


def named_plugins(text: str) -> list[str]:
    """The plugins that a source text names: in quotes, beside the word plugin, store or transport, by its
    package, or by a coined word. Examples of registrations, which are a plugin author's own code, do not
    count."""
    text = re.sub(r"""\bregister\(["']\w+["']""", "register(", " ".join(text.split()))
    found = []
    for name in sorted(BUILT_IN):
        forms = [rf"\b(plugins?|stores?|transports?) ['\"`]?{name}\b", rf"\b{name}['\"`]? plugin\b"]
        forms.append(rf"\brmqkit_\w*{name.replace('-', '_')}\b(?!\()")
        forms += [rf"['\"`]{name}['\"`]"] if name not in OTHER_MEANINGS else []
        forms += [rf"\b{name}\b"] if name in COINED else []
        forms += [FEATURES[name]] if name in FEATURES else []
        if any(re.search(form, text) for form in forms):
            found.append(name)
    return found


@pytest.mark.parametrize("room", ["broker", "plugin", "remoting", "toolkit"])
def test_the_kernel_names_no_plugin(room: str) -> None:
    """A text of the kernel would be wrong for another plugin that does the same. Only the table of requests
    without support says which plugin supports one."""
    root = Path(rmqkit.__file__).parent
    named = {
        str(path.relative_to(root)): found
        for path in (root / room).rglob("*.py*")
        if path.suffix in {".py", ".pyx", ".pyi"} and (found := named_plugins(path.read_text("utf-8")))
    }
    named.pop("broker/processors/unsupported.py", None)
    assert named == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('PLUGIN = "delay"', ["delay"]),
        ("the delay plugin parks it", ["delay"]),
        ("of the plugin\n    ha, which follows", ["ha"]),
        ("the consume queues of the store mmap", ["mmap"]),
        ("import rmqkit_filter_server", ["filter-server"]),
        ('if kind == "SQL92" and config.enable_consume_queue_ext:', ["filter", "mmap"]),
        ('register("audit", Audit())', []),
        ("no plugin filters without delay", []),
    ],
)
def test_a_named_plugin_is_found(text: str, found: list[str]) -> None:
    """In code, comments and docstrings, also across lines."""
    assert named_plugins(text) == found
