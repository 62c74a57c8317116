"""Hooks of a client: around sends, consumption and calls (behaviour sheet, C14; Java client: SendMessageHook, ConsumeMessageHook, FilterMessageHook,
CheckForbiddenHook, RPCHook).

    async with Client("127.0.0.1:9876", hooks=[Mine()]) as client: ...

An object may be of several kinds; those of one kind are called in the order given. Methods are plain functions and must not block, but for `open` and
`close`. What they raise is logged and changes nothing; only `CheckForbiddenHook` and `CallHook.before_call` stop what they are asked about.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.abc import TaskGroup
from attrs import Factory, define, evolve

from rmqkit.client.received import ReceivedMessage
from rmqkit.client.send_result import SendResult
from rmqkit.errors import ClientError
from rmqkit.hook_calls import Hooks
from rmqkit.model.message import Message
from rmqkit.model.message_type import MessageType, message_type
from rmqkit.model.names import namespace_of
from rmqkit.model.queue import MessageQueue
from rmqkit.remoting.pool import CallHook

if TYPE_CHECKING:
    from rmqkit.client.client import Client

log = logging.getLogger(__name__)
#: All hooks together get so long for their last words when a client is closed.
CLOSE_S = 5.0
#: And each one so long to begin.
OPEN_S = 10.0
H = TypeVar("H")


class ClientHook:
    """Life of what hangs on a client. It may use the client: a producer of its own, for one."""

    async def open(self, client: Client, tasks: TaskGroup) -> None:
        """The client is open; what is started in `tasks` is cancelled when it closes. What this raises keeps it from opening, and so does taking longer
        than OPEN_S."""
        await anyio.lowlevel.checkpoint()

    async def close(self) -> None:
        """Last words; the client still works. Cancelled after CLOSE_S, and at the first wait when the client is left because it was cancelled."""
        await anyio.lowlevel.checkpoint()


# --- sends -----------------------------------------------------------------------------------------------------------


class Mode(Enum):
    """Java: CommunicationMode. What is awaited here is SYNC."""

    SYNC = "SYNC"
    ONEWAY = "ONEWAY"


@define(slots=True, kw_only=True)
class ClientSendContext:
    """One send or send_batch with all its attempts. The fields from `message_ids` on are set for `after_send`.

    messages    as the application gave them, one unless it is a batch; `before_send` may replace them, see `set_property`
    queue       the one asked for, in `after_send` the one tried last; None when it never came to that
    message_ids the producer's ids
    address     of the broker tried last
    attempts    how often it was tried
    result      when a broker has it; None for a one-way send
    error       what the application is told instead
    notes       for hooks to keep something from `before_send` to `after_send`, each under a key of its own
    """

    client_id: str
    group: str
    mode: Mode
    messages: list[Message]
    queue: MessageQueue | None = None
    message_ids: tuple[str, ...] = ()
    address: str | None = None
    attempts: int = 0
    result: SendResult | None = None
    error: BaseException | None = None
    notes: dict[object, Any] = Factory(dict)

    @property
    def topic(self) -> str:
        return self.messages[0].topic

    @property
    def namespace(self) -> str:
        return namespace_of(self.topic)

    @property
    def message_type(self) -> MessageType:
        return message_type(self.messages[0].all_properties())

    def set_property(self, name: str, value: str) -> None:
        """Let every message travel with a further property."""
        self.messages = [evolve(message, properties={**message.properties, name: value}) for message in self.messages]


class ClientSendHook(ClientHook):
    """Around each send. Java calls its hook around each attempt; here one pair sees them all."""

    def before_send(self, context: ClientSendContext) -> None:
        return

    def after_send(self, context: ClientSendContext) -> None:
        return


@define(slots=True, kw_only=True)
class CheckForbiddenContext:
    """One attempt of a send, to a queue of the broker at `address`. `unit_mode` is always False here."""

    client_id: str
    group: str
    mode: Mode
    messages: Sequence[Message]
    queue: MessageQueue
    address: str
    unit_mode: bool = False


class CheckForbiddenHook(ClientHook, ABC):
    """Asked before each attempt of a send."""

    @abstractmethod
    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        """Whatever this raises is what the application gets; nothing is sent and nothing tried again."""


# --- consumption -----------------------------------------------------------------------------------------------------


class ConsumeReturnType(IntEnum):
    """How consuming ended (Java: ConsumeReturnType); the numbers are those in trace records."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


@define(slots=True, kw_only=True)
class ClientConsumeContext:
    """Messages of one queue on their way through the application. `result` is set for `after_consume`.

    Of `async for message in consumer.messages(...)` it is one message, from the time it is handed out until the loop asks for the next one: SUCCESS; when
    the loop is left with it in hand: FAILED. Of a `pull` it is what the pull brought, at once with SUCCESS; `pulled` says so.
    """

    client_id: str
    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    pulled: bool = False
    result: ConsumeReturnType = ConsumeReturnType.SUCCESS
    notes: dict[object, Any] = Factory(dict)

    @property
    def success(self) -> bool:
        return self.result is ConsumeReturnType.SUCCESS

    @property
    def status(self) -> str:
        """Java's name of the status."""
        return "CONSUME_SUCCESS" if self.success else "RECONSUME_LATER"

    @property
    def namespace(self) -> str:
        return namespace_of(self.queue.topic)


class ClientConsumeHook(ClientHook):
    """Around the application's work on messages."""

    def before_consume(self, context: ClientConsumeContext) -> None:
        return

    def after_consume(self, context: ClientConsumeContext) -> None:
        return


@define(slots=True, kw_only=True)
class FilterMessageContext:
    """What a pull brought that passed the tag filter. A hook takes out of `messages` what the application is not to see; it counts as read."""

    client_id: str
    group: str
    queue: MessageQueue
    messages: list[ReceivedMessage]
    unit_mode: bool = False


class FilterMessageHook(ClientHook, ABC):
    """Behind the exact tag filter of each pull."""

    @abstractmethod
    def filter_messages(self, context: FilterMessageContext) -> None: ...


# --- calling them ----------------------------------------------------------------------------------------------------


class ClientHooks:
    """The hooks of one client, by kind. Raises PluginError for an object that is of no kind, or whose methods are coroutine functions."""

    def __init__(self, client_id: str, hooks: Iterable[ClientHook | CallHook] = ()) -> None:
        given = Hooks.of("client hook", hooks).checked((ClientHook, CallHook), _METHODS)
        self._client_id = client_id
        self._all: list[ClientHook] = [hook for hook in given if isinstance(hook, ClientHook)]
        self.calls = _of(CallHook, given)
        self.filters = _of(FilterMessageHook, given)  # type: ignore[type-abstract]
        self.forbidding = _of(CheckForbiddenHook, given)  # type: ignore[type-abstract]
        self._sends = _of(ClientSendHook, given)
        self._consumes = _of(ClientConsumeHook, given)

    async def open(self, client: Client, tasks: TaskGroup) -> None:
        """Open them in order. Raises what one of them raises, and ClientError when one takes too long, after closing those before it."""
        opened: list[ClientHook] = []
        try:
            for hook in self._all:
                with anyio.move_on_after(OPEN_S) as scope:
                    await hook.open(client, tasks)
                    opened.append(hook)
                if scope.cancelled_caught:
                    raise ClientError(f"client hook {type(hook).__name__} did not open within {OPEN_S:.0f} s")
        except BaseException:
            self._all = opened
            await self.close(in_peace=False)
            raise

    async def close(self, in_peace: bool) -> None:
        """Close them in reverse, whatever one of them raises."""
        with anyio.move_on_after(CLOSE_S if in_peace else 0, shield=True) as scope:
            for hook in reversed(self._all):
                try:
                    await hook.close()
                except Exception:
                    log.exception("client hook %s failed to close", type(hook).__name__)
        if scope.cancelled_caught and in_peace:
            log.warning("the hooks of a client did not close within %s s", CLOSE_S)

    @property
    def see_sends(self) -> bool:
        """Whether any hook looks at the messages of a send."""
        return bool(len(self._sends) or len(self.forbidding))

    @contextmanager
    def sending(self, group: str, mode: Mode, messages: Sequence[Message], queue: MessageQueue | None) -> Iterator[ClientSendContext]:
        """Around one send: the context is to be filled in meanwhile."""
        context = ClientSendContext(client_id=self._client_id, group=group, mode=mode, messages=list(messages), queue=queue)
        self._sends.tell("before_send", context)
        if len(context.messages) != len(messages) or not all(isinstance(message, Message) for message in context.messages):
            log.error("a hook replaced the messages of a send by something else; they are sent as they were")
            context.messages = list(messages)
        try:
            yield context
        except BaseException as error:
            context.error = error
            raise
        finally:
            self._sends.tell("after_send", context)

    def check(self, context: ClientSendContext, queue: MessageQueue, address: str) -> None:
        """Before one attempt. Raises what a CheckForbiddenHook raises."""
        if len(self.forbidding):
            asked = CheckForbiddenContext(
                client_id=self._client_id, group=context.group, mode=context.mode, messages=context.messages, queue=queue, address=address
            )
            for entry in self.forbidding.entries:
                entry.call("check_forbidden", asked)

    def filtered(self, group: str, queue: MessageQueue, messages: tuple[ReceivedMessage, ...]) -> tuple[ReceivedMessage, ...]:
        """What the hooks leave of the messages of a pull."""
        if not messages or not len(self.filters):
            return messages
        context = FilterMessageContext(client_id=self._client_id, group=group, queue=queue, messages=list(messages))
        self.filters.tell("filter_messages", context)
        if not isinstance(context.messages, list):
            log.error("a hook replaced the messages of a pull by something else; they are shown as they were")
            return messages
        left = {id(message) for message in context.messages}
        return tuple(message for message in messages if id(message) in left)

    def consuming(
        self, group: str, queue: MessageQueue, messages: Sequence[ReceivedMessage], *, pulled: bool = False
    ) -> ClientConsumeContext | None:
        """Messages go to the application now; None when nobody wants to know. `consumed` must follow."""
        if not messages or not len(self._consumes):
            return None
        context = ClientConsumeContext(client_id=self._client_id, group=group, queue=queue, messages=messages, pulled=pulled)
        self._consumes.tell("before_consume", context)
        return context

    def consumed(self, context: ClientConsumeContext | None, result: ConsumeReturnType) -> None:
        if context is not None:
            context.result = result
            self._consumes.tell("after_consume", context)


#: Those that are plain functions.
_METHODS = (
    "before_send",
    "after_send",
    "check_forbidden",
    "before_consume",
    "after_consume",
    "filter_messages",
    "before_call",
    "after_call",
)


def _of(kind: type[H], hooks: Hooks[Any]) -> Hooks[H]:
    return Hooks(hooks.kind, [entry for entry in hooks.entries if isinstance(entry.hook, kind)])


__all__ = [
    "CallHook",
    "CheckForbiddenContext",
    "CheckForbiddenHook",
    "ClientConsumeContext",
    "ClientConsumeHook",
    "ClientHook",
    "ClientSendContext",
    "ClientSendHook",
    "ConsumeReturnType",
    "FilterMessageContext",
    "FilterMessageHook",
    "Mode",
]
