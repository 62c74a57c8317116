"""A plugin's view of what all plugins have registered; `rmqkit.plugin.loader.Registry` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rmqkit.config import SettingsType
    from rmqkit.model.attributes import Attribute
    from rmqkit.plugin.acks import AckCondition
    from rmqkit.plugin.allocation import AllocationStrategy
    from rmqkit.plugin.dispatcher import LogFollower
    from rmqkit.plugin.filter import FilterServer
    from rmqkit.plugin.hook_runner import Hooks
    from rmqkit.plugin.hooks import ConsumeMessageHook, PutMessageHook, SendMessageHook
    from rmqkit.plugin.protocols import WireProtocol
    from rmqkit.plugin.request_hooks import CallHook, RpcHook
    from rmqkit.plugin.transport import Address, Transport


class Registrations(Protocol):
    """The registrations of all enabled plugins."""

    @property
    def services(self) -> Mapping[str, object]:
        """The services of a broker by name. A plugin finds its own here and checks the type."""

    @property
    def dispatchers(self) -> Mapping[str, LogFollower]:
        """What follows the log, by name, chosen or not (`Broker.dispatching`)."""

    @property
    def ack_conditions(self) -> Mapping[str, AckCondition]: ...

    @property
    def allocation_strategies(self) -> Mapping[str, AllocationStrategy]: ...

    @property
    def filter_servers(self) -> Mapping[str, FilterServer]:
        """The filters by expression type."""

    @property
    def topic_attributes(self) -> Mapping[str, Attribute]:
        """What plugins let topics have, by name."""

    @property
    def group_attributes(self) -> Mapping[str, Attribute]:
        """What plugins let consumer groups have, by name."""

    @property
    def protocols(self) -> Mapping[str, WireProtocol]:
        """The protocols that share ports."""

    @property
    def settings(self) -> Mapping[str, SettingsType]:
        """The structs of settings that plugins own, by name."""

    @property
    def send_message_hooks(self) -> Hooks[SendMessageHook]: ...

    @property
    def consume_message_hooks(self) -> Hooks[ConsumeMessageHook]: ...

    @property
    def rpc_hooks(self) -> Hooks[RpcHook]: ...

    @property
    def call_hooks(self) -> Hooks[CallHook]: ...

    @property
    def put_message_hooks(self) -> Hooks[PutMessageHook]: ...

    def chosen(self, kind: str, name: str) -> Any:
        """The thing of this kind and name: chosen("flush_policies", "ASYNC_FLUSH"). Raises PluginError, which
        lists the registered ones."""

    def transport(self, address: Address) -> Transport:
        """The transport of an address. Raises PluginError when no plugin registers its scheme, ConfigError
        when the address lacks a required port."""
