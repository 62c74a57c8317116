"""The kernel needs none of its own plugins and uses those selected by the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.plugin.flush import Flushable, FlushPolicy, FlushPolicyFactory, Level
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.loader import load
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import StoreFactory
from rmqkit.plugin.transport import Transport
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rmqkit.protocol.record import unpack_all
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import Call, calling_broker
from rmqkit.testing.store import bodies
from rmqkit_store_memory.store import MemoryStore
from rmqkit_transport_memory.memory import MemoryTransport

pytestmark = [
    pytest.mark.only_store(why="brings its own store"),
    pytest.mark.only_transport(why="brings its own transport"),
]
#: The plugins that stay.
NEEDED = {"memory", "memory-pipes"}


def installed() -> set[str]:
    return {plugin.name for plugin in load(Config()).plugins if not plugin.optional}


class Flush(FlushPolicy):
    """The minimum of a policy."""

    acknowledge_at = Level.WRITTEN

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        while True:
            await wanted()
            await log.flush()


class StrangeStore(MemoryStore):
    pass


class StrangeTransport(MemoryTransport):
    scheme = "strange"


class StrangeFilter(FilterServer):
    """Lets everything pass."""

    expression_type = "TAG"

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        return CompiledFilter()

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        return SubscriptionData(topic=topic, sub_string=expression, sub_version=version)


class StrangeService(Service):
    name = "strange"
    runs = 0

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        self.runs += 1
        task_status.started()
        await trio.sleep_forever()


class OneFlush:
    """A plugin with only a flush policy, which every store requires."""

    @hookimpl
    def rmqkit_register_flush_policies(self, register: Register[FlushPolicyFactory]) -> None:
        register("ASYNC_FLUSH", lambda config: Flush())


class Stranger(OneFlush):
    """One of everything a broker uses."""

    def __init__(self) -> None:
        self.service = StrangeService()

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory]) -> None:
        register("strange", StrangeStore)

    @hookimpl
    def rmqkit_register_transports(self, register: Register[Transport]) -> None:
        register("strange", StrangeTransport())

    @hookimpl
    def rmqkit_register_filter_servers(self, register: Register[FilterServer]) -> None:
        register("TAG", StrangeFilter())

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service]) -> None:
        register("strange", self.service)


async def send(call: Call, *bodies: bytes) -> None:
    header = SendMessageRequestHeader(producer_group="p", topic="Orders", queue_id=0)
    for body in bodies:
        sent = await call(request(RequestCode.SEND_MESSAGE, header, body))
        assert sent.code == ResponseCode.SUCCESS, sent.remark


async def pull(call: Call) -> Command:
    header = PullMessageRequestHeader(
        consumer_group="g",
        topic="Orders",
        queue_id=0,
        queue_offset=0,
        sys_flag=4,
        suspend_timeout_millis=0,
        subscription="*",
    )
    return await call(request(RequestCode.PULL_MESSAGE, header))


async def test_a_broker_of_a_store_and_a_transport(tmp_path: Path) -> None:
    """Messages can be sent and read with every other built-in plugin disabled; of others only a flush policy
    is needed. A pull is told that there is no filter plugin."""
    disabled = ",".join(sorted(installed() - NEEDED))
    extra: list[tuple[str, Any]] = [("one-flush", OneFlush())]
    async with (
        running_broker(tmp_path, extra=extra, scheme="memory", disabledPlugins=disabled) as broker,
        calling_broker(broker) as call,
    ):
        assert {plugin.name for plugin in broker.context.registry.plugins if plugin.enabled} == NEEDED | {
            "one-flush"
        }
        await send(call, b"one", b"two")
        assert bodies(broker.context.store) == [b"one", b"two"]
        assert "no plugin filters by expressions of type 'TAG'" in str((await pull(call)).remark)


async def test_a_broker_of_strangers(tmp_path: Path) -> None:
    """A broker made of another plugin's parts works with every built-in plugin disabled."""
    stranger = Stranger()
    keys: dict[str, Any] = {"disabledPlugins": ",".join(sorted(installed())), "store": "strange"}
    async with (
        running_broker(tmp_path, extra=[("stranger", stranger)], scheme="strange", **keys) as broker,
        calling_broker(broker) as call,
    ):
        assert [plugin.name for plugin in broker.context.registry.plugins if plugin.enabled] == ["stranger"]
        assert (type(broker.context.store), broker.address.scheme, stranger.service.runs) == (
            StrangeStore,
            "strange",
            1,
        )
        await send(call, b"one", b"two")
        assert [message.body for message in unpack_all((await pull(call)).body)] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ("memory", "no plugin brings 'memory' among the stores"),
        ("flush", "no plugin brings 'ASYNC_FLUSH' among the flush policies"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, gone: str, missing: str) -> None:
    """The kernel does not replace a disabled plugin."""
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match=missing), allow_unwrapped=True, flatten_subgroups=True
    ):
        async with running_broker(tmp_path, scheme="memory", disabledPlugins=gone):
            pass
