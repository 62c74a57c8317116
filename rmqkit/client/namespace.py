"""The namespace of a client: names as the application writes them, and as brokers know them (Java:
ClientConfig.withNamespace, NamespaceUtil; behaviour sheet, A15).

Within the client all names are those of the brokers, `ns%Orders`. The conversion happens at the methods that
an application calls, which are marked with `in_namespace`, and where messages are handed out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import wraps
from itertools import zip_longest
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import msgspec
from attrs import evolve

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.outgoing import PackedBatch
from rmqkit.client.producing.send_result import SendResult
from rmqkit.errors import ConfigError
from rmqkit.model.message import Message
from rmqkit.model.names import namespace_fault, namespace_of, with_namespace, without_namespace
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData

P = ParamSpec("P")
T = TypeVar("T")

#: Parameters whose text is a name: of a topic or group; a message given as its topic; topics with or without
#: expressions.
_NAMES = frozenset({"topic", "group", "message", "subscribe"})
#: The parameter whose value is none of names, whatever it is.
_CONTENT = "body"


class Namespace:
    """Converts names; without a namespace everything stays as it is. Raises ConfigError for an illegal
    one."""

    def __init__(self, name: str = "") -> None:
        fault = namespace_fault(name)
        if fault is not None:
            raise ConfigError(fault)
        self.name = name

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrapped(self, name: str) -> str:
        """The name of a topic or group as brokers know it. Wrapping it again changes nothing."""
        return with_namespace(name, self.name)

    def plain(self, name: str) -> str:
        """The name as the application knows it. A name of another namespace stays as it is."""
        return without_namespace(name) if self.name and namespace_of(name) == self.name else name

    def own(self, names: Iterable[str]) -> list[str]:
        """The names of this namespace, as the application knows them; all names without a namespace."""
        if not self.name:
            return list(names)
        return [without_namespace(name) for name in names if namespace_of(name) == self.name]

    def inward(self, value: Any, *, name: bool = False) -> Any:
        """An argument with the names of the brokers. Text is converted if `name` is set; what contains no
        names stays as it is."""
        if not self.name:
            return value
        if isinstance(value, str):
            return self.wrapped(value) if name else value
        if isinstance(value, (Message, MessageQueue)):
            return msgspec.structs.replace(value, topic=self.wrapped(value.topic))
        if isinstance(value, PackedBatch):
            return evolve(value, topic=self.wrapped(value.topic))
        if isinstance(value, Mapping):
            return {self.inward(key, name=name): each for key, each in value.items()}
        if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, memoryview)):
            return [self.inward(each, name=name) for each in value]
        return value

    def outward(self, value: T) -> T:
        """A result with the names of the application."""
        return cast(T, self._outward(value)) if self.name else value

    def _outward(self, value: Any) -> Any:
        if isinstance(value, (MessageQueue, SubscriptionData)):
            return msgspec.structs.replace(value, topic=self.plain(value.topic))
        if isinstance(value, ReceivedMessage):
            return evolve(value, topic=self.plain(value.topic), queue=self._outward(value.queue))
        if isinstance(value, SendResult):
            return msgspec.structs.replace(value, queue=self._outward(value.queue))
        if isinstance(value, Mapping):
            by_topic = all(isinstance(each, SubscriptionData) for each in value.values())
            named = self.plain if by_topic else self._outward
            return {named(key): self._outward(each) for key, each in value.items()}
        if isinstance(value, (list, tuple, AbstractSet)):
            return type(value)(self._outward(each) for each in value)  # type: ignore[call-arg]
        return value


class Named(Protocol):
    """An object whose methods may be marked with `in_namespace`."""

    @property
    def _names(self) -> Namespace: ...


S = TypeVar("S", bound=Named)


def in_namespace(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method, plain or `async def`, whose arguments and result have the names of the application: its
    parameters `topic`, `group`, `message` and `subscribe`, and queues and messages anywhere."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    function = cast(Callable[..., Any], method)

    def call(self: S, /, *args: Any, **kwargs: Any) -> Any:
        names = self._names
        if not names.name:
            return function(self, *args, **kwargs)
        placed = [
            value if name == _CONTENT else names.inward(value, name=name in _NAMES)
            for name, value in zip_longest(by_place[: len(args)], args, fillvalue="")
        ]
        named = {
            name: value if name == _CONTENT else names.inward(value, name=name in _NAMES)
            for name, value in kwargs.items()
        }
        return function(self, *placed, **named)

    @wraps(method)
    def plain(self: S, /, *args: Any, **kwargs: Any) -> Any:
        return self._names.outward(call(self, *args, **kwargs))

    @wraps(method)
    async def awaited(self: S, /, *args: Any, **kwargs: Any) -> Any:
        if not self._names.name:
            return await function(self, *args, **kwargs)
        return self._names.outward(await call(self, *args, **kwargs))

    return cast(Callable[Concatenate[S, P], T], awaited if inspect.iscoroutinefunction(method) else plain)
