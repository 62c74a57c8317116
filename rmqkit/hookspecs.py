"""Every hook a plugin may implement: when it is called, by whom, and what it may do.

A plugin is a module (or object) named by an entry point in the group `rmqkit`, with functions marked by `rmqkit.hookimpl`. All `rmqkit_register_*`
hooks are called once, while a process is put together; what they register is compiled into tuples and tables, so that no hook machinery
stands on the path of a message. Example:

    from rmqkit import hookimpl
    from rmqkit.hooks import SendContext, SendMessageHook

    class Audit(SendMessageHook):
        def after(self, context: SendContext) -> None:
            print(context.topic, context.message_id)

    @hookimpl
    def rmqkit_register_send_message_hooks(register, config):
        register("audit", Audit())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import pluggy

if TYPE_CHECKING:
    from rmqkit.abc import AllocationStrategy, FilterServer, FlushPolicyFactory, RequestProcessor, Server, Service, StoreFactory, Transport
    from rmqkit.broker.context import BrokerContext
    from rmqkit.cli.verbs import Verb
    from rmqkit.config import Config
    from rmqkit.dispatch import LogFollower
    from rmqkit.hooks import ConsumeMessageHook, PutMessageHook, RpcHook, SendMessageHook
    from rmqkit.store_tools import StoreTools

PROJECT = "rmqkit"
#: Version of these hooks and of the interfaces in rmqkit.abc, rmqkit.dispatch and rmqkit.hooks; it changes when a plugin may have to. A plugin that says
#: what it was made for (`rmqkit_api = 1`) is refused by a kernel with another one.
API = 1
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Given to a register hook: `register(name, thing)`. Two things of one name are an error unless one plugin is disabled.

    `order` sorts things of equal rank that run one after the other (hooks, dispatchers): lower first, then by name.
    """

    def __call__(self, name: str, thing: T_contra, *, order: int = 0) -> None: ...


class RegisterProcessor(Protocol):
    """`register(code, processor)`; `long_wait` marks codes that are not served on the fast port (pulls). A plugin's processor replaces a built-in one."""

    def __call__(self, code: int, processor: RequestProcessor, *, long_wait: bool = False) -> None: ...


@hookspec
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    """Message stores, chosen by the setting `store`. A factory gets the settings, a clock and the flush policy. Example: register("memory", MemoryStore)."""


@hookspec
def rmqkit_register_store_tools(register: Register[StoreTools], config: Config) -> None:
    """What `rmqkit store` does with a store directory, by the store's name. Example: register("mmap", MmapTools())."""


@hookspec
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    """Transports, chosen by the scheme of an address. Example: register("tcp", TcpTransport(config))."""


@hookspec
def rmqkit_register_flush_policies(register: Register[FlushPolicyFactory], config: Config) -> None:
    """Flush policies, chosen by `flushDiskType` and `transientStorePoolEnable` (`Config.flush_policy`). Example: register("ASYNC_FLUSH", AsyncFlush)."""


@hookspec
def rmqkit_register_dispatchers(register: Register[LogFollower], config: Config) -> None:
    """Dispatchers, with or without a queue of their own, that see every appended message; chosen and ordered by `dispatchers`, there in `order` where
    it says `*`. They may replace the store's queues or index. Example: register("counter", Counter(), order=10)."""


@hookspec
def rmqkit_register_allocation_strategies(register: Register[AllocationStrategy], config: Config) -> None:
    """How clients share queues, chosen by a consumer's setting. Example: register("AVG", Averagely())."""


@hookspec
def rmqkit_register_filter_servers(register: Register[FilterServer], config: Config) -> None:
    """Filters, chosen by the expression type of a subscription. Example: register("TAG", TagFilter())."""


@hookspec
def rmqkit_register_processors(register: RegisterProcessor, broker: BrokerContext) -> None:
    """Request codes a broker answers besides the built-in ones, or instead of them; called last. Example: register(1234, Mine(broker))."""


@hookspec
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    """Services that run beside a broker, started in `order`, stopped in reverse. Switched off by `disabledServices`. Example: register("delay", Delay())."""


@hookspec
def rmqkit_register_servers(register: Register[Server], config: Config) -> None:
    """Process roles besides the broker. Example: register("namesrv", NameServer())."""


@hookspec
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook], config: Config) -> None:
    """Hooks around every send a broker handles, in `order`. Example: register("audit", Audit())."""


@hookspec
def rmqkit_register_consume_message_hooks(register: Register[ConsumeMessageHook], config: Config) -> None:
    """Hooks around pulls and send-backs, in `order`. Example: register("lag", LagHook())."""


@hookspec
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    """Hooks around every request a server handles, in `order`. Example: register("acl", CheckSignature())."""


@hookspec
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    """Hooks with the last word before an append, in `order`; how delay parks a message. Example: register("delay", ParkDelayed())."""


@hookspec
def rmqkit_register_commands(register: Register[Verb], config: Config) -> None:
    """Verbs of the command line. Example: register("hello", Verb("say hello", add_arguments, run))."""


@hookspec
def rmqkit_broker_started(broker: BrokerContext) -> None:
    """Called once when a broker serves. Must not block. Example: log the address."""


@hookspec
def rmqkit_broker_stopping(broker: BrokerContext) -> None:
    """Called once when a broker begins to stop, while its store is still open. Must not block. Example: write a last audit line."""
