"""The kernel needs none of its own plugins: what it is told to use is what it uses, whoever brought it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.abc import (
    CompiledFilter,
    FilterServer,
    Flushable,
    FlushPolicy,
    FlushPolicyFactory,
    Level,
    Service,
    StoreFactory,
    Transport,
)
from rmqkit.broker.context import BrokerContext
from rmqkit.config import Config
from rmqkit.errors import PluginError
from rmqkit.hookspecs import Register
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugins import load
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rmqkit.protocol.record import unpack_all
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import Call, calling_broker
from rmqkit.testing.store import bodies
from rmqkit_store_memory.store import MemoryStore
from rmqkit_transport_memory.memory import MemoryTransport

pytestmark = [pytest.mark.only_store(why="brings its own store"), pytest.mark.only_transport(why="brings its own transport")]
#: The plugins that stay.
NEEDED = {"memory", "memory-pipes"}


def installed() -> set[str]:
    return {plugin.name for plugin in load(Config()).plugins if not plugin.optional}


class Flush(FlushPolicy):
    """The least a policy can do."""

    acknowledge_at = Level.WRITTEN

    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
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

    def compile(self, subscription: SubscriptionData) -> CompiledFilter:
        return CompiledFilter()

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        return SubscriptionData(topic=topic, sub_string=expression, sub_version=version)


class StrangeService(Service):
    name = "strange"
    runs = 0

    async def run(self, broker: BrokerContext, task_status: trio.TaskStatus[None]) -> None:
        self.runs += 1
        task_status.started()
        await trio.sleep_forever()


class OneFlush:
    """A plugin with nothing but a flush policy: the one thing every store is made with."""

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
        consumer_group="g", topic="Orders", queue_id=0, queue_offset=0, sys_flag=4, suspend_timeout_millis=0, subscription="*"
    )
    return await call(request(RequestCode.PULL_MESSAGE, header))


async def test_a_broker_of_a_store_and_a_transport(tmp_path: Path) -> None:
    """Messages go in and can be read with every other built-in plugin blocked; of others only a flush policy is asked for. Who pulls is told that no
    plugin filters."""
    disabled = ",".join(sorted(installed() - NEEDED))
    extra: list[tuple[str, Any]] = [("one-flush", OneFlush())]
    async with running_broker(tmp_path, extra=extra, scheme="memory", disabledPlugins=disabled) as broker, calling_broker(broker) as call:
        assert {plugin.name for plugin in broker.context.registry.plugins if plugin.enabled} == NEEDED | {"one-flush"}
        await send(call, b"one", b"two")
        assert bodies(broker.context.store) == [b"one", b"two"]
        assert "no plugin filters by expressions of type 'TAG'" in str((await pull(call)).remark)


async def test_a_broker_of_strangers(tmp_path: Path) -> None:
    """With every built-in plugin blocked, one made of another's parts works the same."""
    stranger = Stranger()
    keys: dict[str, Any] = {"disabledPlugins": ",".join(sorted(installed())), "store": "strange"}
    async with running_broker(tmp_path, extra=[("stranger", stranger)], scheme="strange", **keys) as broker, calling_broker(broker) as call:
        assert [plugin.name for plugin in broker.context.registry.plugins if plugin.enabled] == ["stranger"]
        assert (type(broker.context.store), broker.address.scheme, stranger.service.runs) == (StrangeStore, "strange", 1)
        await send(call, b"one", b"two")
        assert [message.body for message in unpack_all((await pull(call)).body)] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("gone", "missing"),
    [("memory", "no plugin brings 'memory' among the stores"), ("flush", "no plugin brings 'ASYNC_FLUSH' among the flush policies")],
)
async def test_what_is_missing_is_named(tmp_path: Path, gone: str, missing: str) -> None:
    """The kernel puts nothing of its own in the place of a plugin that is blocked."""
    with pytest.RaisesGroup(pytest.RaisesExc(PluginError, match=missing), allow_unwrapped=True, flatten_subgroups=True):
        async with running_broker(tmp_path, scheme="memory", disabledPlugins=gone):
            pass
