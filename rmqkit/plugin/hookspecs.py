"""Every hook that a plugin may implement: when it is called and what it may do.

A plugin is a module (or object) named by an entry point in the group `rmqkit`, with functions marked by
`rmqkit.hookimpl`. All `rmqkit_register_*` hooks are called once, at the start of a process. Their
registrations are compiled into tuples and tables, so handling a message involves no plugin machinery.
Example:

    from rmqkit import hookimpl
    from rmqkit.plugin.hooks import EachSendHook, SendContext

    class Audit(EachSendHook):
        def after_each(self, context: SendContext) -> None:
            print(context.topic, context.message_id)

    @hookimpl
    def rmqkit_register_send_message_hooks(register, config):
        register("audit", Audit())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import pluggy

if TYPE_CHECKING:
    from rmqkit.config import Config, SettingsType
    from rmqkit.model.attributes import Attribute
    from rmqkit.plugin.acks import AckCondition
    from rmqkit.plugin.allocation import AllocationStrategy
    from rmqkit.plugin.command import Verb
    from rmqkit.plugin.dispatcher import LogFollower
    from rmqkit.plugin.filter import FilterIndexFactory, FilterServer
    from rmqkit.plugin.flush import FlushPolicyFactory
    from rmqkit.plugin.hooks import ConsumeMessageHook, PutMessageHook, SendMessageHook
    from rmqkit.plugin.protocols import WireProtocol
    from rmqkit.plugin.queue_code import QueueCode
    from rmqkit.plugin.request import RequestProcessor
    from rmqkit.plugin.request_broker import RequestBroker
    from rmqkit.plugin.request_hooks import CallHook, RpcHook
    from rmqkit.plugin.server import Server
    from rmqkit.plugin.service import Service
    from rmqkit.plugin.store import StoreFactory
    from rmqkit.plugin.store_tools import StoreTools
    from rmqkit.plugin.transport import Transport

PROJECT = "rmqkit"
#: Version of these hooks and of the interfaces in rmqkit.plugin. It increases with incompatible changes. A
#: plugin that states its version (`rmqkit_api = 3`) is refused by a kernel with another version.
API = 3
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Argument of a register hook: `register(name, thing)`. Two things with the same name are an error unless
    one of their plugins is disabled.

    `order` sorts things that run one after the other (hooks, dispatchers): lower first, then by name.
    """

    def __call__(self, name: str, thing: T_contra, *, order: int = 0) -> None: ...


class RegisterProcessor(Protocol):
    """`register(code, processor)`; `long_wait` marks codes that are not served on the fast port (pulls). A
    plugin's processor replaces a built-in one."""

    def __call__(self, code: int, processor: RequestProcessor, *, long_wait: bool = False) -> None: ...


@hookspec
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    """Message stores, chosen by the setting `store`. A factory gets the settings, a clock and the flush
    policy. Example: register("memory", MemoryStore)."""


@hookspec
def rmqkit_register_store_tools(register: Register[StoreTools], config: Config) -> None:
    """The tools of `rmqkit store` for a store directory, by the store's name. Example: register("mmap",
    MmapTools())."""


@hookspec
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    """Transports, chosen by the scheme of an address. Example: register("tcp", TcpTransport(config))."""


@hookspec
def rmqkit_register_flush_policies(register: Register[FlushPolicyFactory], config: Config) -> None:
    """Flush policies, chosen by `flushDiskType` and `transientStorePoolEnable` (`Config.flush_policy`).
    Example: register("ASYNC_FLUSH", AsyncFlush)."""


@hookspec
def rmqkit_register_ack_conditions(register: Register[AckCondition], config: Config) -> None:
    """Further conditions, besides the flush policy's, that a message must meet before its sender is answered
    with success, in `order`. Example: register("replicas", self.replicas)."""


@hookspec
def rmqkit_register_dispatchers(register: Register[LogFollower], config: Config) -> None:
    """Dispatchers, with or without a queue of their own, which get every appended message. The setting
    `dispatchers` selects and sorts them; those selected by `*` are sorted by `order`. They may replace the
    store's queues or index. Example: register("counter", Counter(), order=10)."""


@hookspec
def rmqkit_register_allocation_strategies(register: Register[AllocationStrategy], config: Config) -> None:
    """Strategies, by name, for sharing the queues of a topic among the members of a group. A consumer chooses
    one by its option `allocation`. Example: register("AVG", Averagely())."""


@hookspec
def rmqkit_register_filter_servers(register: Register[FilterServer], config: Config) -> None:
    """Filters, chosen by the expression type of a subscription. Example: register("TAG", TagFilter())."""


@hookspec
def rmqkit_register_filter_indexes(register: Register[FilterIndexFactory], config: Config) -> None:
    """What a broker keeps of the filters of groups that do not select by tags; it uses the first in `order`.
    Example: register("mine", MyIndex)."""


@hookspec
def rmqkit_register_processors(register: RegisterProcessor, broker: RequestBroker) -> None:
    """Processors of request codes, in addition to the built-in ones or in place of them. Example:
    register(1234, Mine(broker))."""


@hookspec
def rmqkit_register_queue_codes(register: Register[QueueCode], config: Config) -> None:
    """Functions for the code in the units of a topic's queues, in place of the hash of the tags, by topic.
    Example: register("SCHEDULE_TOPIC_XXXX", delivery_time)."""


@hookspec
def rmqkit_register_topic_attributes(register: Register[Attribute], config: Config) -> None:
    """Attributes that a topic may have because of the plugin, by name; the broker refuses others. Example:
    register("dedup.window", Span(least_ms=1_000, most_ms=86_400_000))."""


@hookspec
def rmqkit_register_group_attributes(register: Register[Attribute], config: Config) -> None:
    """Attributes that a consumer group may have because of the plugin, by name; the broker refuses others.
    Example: register("quota.bytes", Attribute(minimum=0))."""


@hookspec
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    """Services that run beside a broker, started in `order`, stopped in reverse. Disabled by
    `disabledServices`. Example: register("delay", Delay())."""


@hookspec
def rmqkit_register_servers(register: Register[Server], config: Config) -> None:
    """Process roles besides the broker. Example: register("namesrv", NameServer())."""


@hookspec
def rmqkit_register_protocols(register: Register[WireProtocol], config: Config) -> None:
    """Protocols that share the ports of servers with RocketMQ's remoting: chosen by the first bytes of a
    connection, or in the TLS handshake. Example: register("grpc", Grpc())."""


@hookspec
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook], config: Config) -> None:
    """Hooks around every send that a broker handles, in `order`. Example: register("audit", Audit())."""


@hookspec
def rmqkit_register_consume_message_hooks(register: Register[ConsumeMessageHook], config: Config) -> None:
    """Hooks around pulls and send-backs, in `order`. Example: register("lag", LagHook())."""


@hookspec
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    """Hooks around every request that a server handles, in `order`; `RpcHook.servers` says which servers.
    Example: register("acl", CheckSignature())."""


@hookspec
def rmqkit_register_call_hooks(register: Register[CallHook], config: Config) -> None:
    """Hooks around every request that a server sends to another one, in `order`: a broker to name servers
    and masters, for example. A client's are passed to the client. Example: register("sign", Sign(key))."""


@hookspec
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    """Hooks that run last before an append, in `order`: to keep messages until later, for example.
    Example: register("park", ParkMessages())."""


@hookspec
def rmqkit_register_commands(register: Register[Verb], config: Config) -> None:
    """Verbs of the command line. Example: register("hello", Verb("say hello", add_arguments, run))."""


@hookspec
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    """RocketMQ's settings that belong to the plugin, as a struct by name (`rmqkit.config.owned`). The start
    checks them, and neither refuses them nor reports them as having no effect. Example: register("retention",
    RetentionSettings)."""


@hookspec
def rmqkit_broker_assembled(broker: RequestBroker) -> None:
    """Called once when all parts of a broker exist and its tables are loaded, before it serves and before
    services run. An exception stops the start. Must not block. Example: begin to count."""


@hookspec
def rmqkit_broker_started(broker: RequestBroker) -> None:
    """Called once when a broker serves. Must not block. Example: log the address."""


@hookspec
def rmqkit_broker_stopping(broker: RequestBroker) -> None:
    """Called once when a broker begins to stop, while its store is still open. Must not block. Example:
    write a last audit line."""
