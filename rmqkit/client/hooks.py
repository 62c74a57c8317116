"""Hooks of a client: around sends, consumption and calls (behaviour sheet, C14; Java client: SendMessageHook,
ConsumeMessageHook, FilterMessageHook, CheckForbiddenHook, EndTransactionHook, RPCHook).

    async with Client("127.0.0.1:9876", hooks=[Mine()]) as client: ...

An object may implement several kinds of hook. Hooks of one kind are called in the order given. All methods
except `open` and `close` are plain functions and must not block. Their errors are logged and otherwise
ignored; only an error of `CheckForbiddenHook` or `CallHook.before_call` prevents the operation.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum, IntEnum
from types import TracebackType
from typing import Any, Protocol, TypeVar, Unpack

import anyio
import msgspec
from anyio.abc import TaskGroup
from attrs import Factory, define

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.send_result import SendResult
from rmqkit.client.producing.transaction_state import TransactionState
from rmqkit.client.settings import ClientSettings, ProducerKeywords
from rmqkit.errors import ClientError
from rmqkit.model.message import Message
from rmqkit.model.message_type import MessageType, message_type
from rmqkit.model.names import namespace_of
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.hook_runner import Hooks
from rmqkit.plugin.request_hooks import CallHook
from rmqkit.protocol.headers import EndTransactionRequestHeader

log = logging.getLogger(__name__)
#: Time limit for closing all hooks together when a client is closed.
CLOSE_S = 5.0
#: Time limit for opening each hook.
OPEN_S = 10.0
H = TypeVar("H")


class HookProducer(Protocol):
    """A producer that a hook has opened: a `Producer`, as far as hooks use it."""

    async def send(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        """Send one message and wait for its result. Raises as `Producer.send`."""


class HookedClient(Protocol):
    """The client of a hook: a `Client`, as far as hooks use it."""

    @property
    def settings(self) -> ClientSettings: ...

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""

    def producer(
        self, group: str, **options: Unpack[ProducerKeywords]
    ) -> AbstractAsyncContextManager[HookProducer]:
        """A producer, to be opened with `async with`. Raises as `Client.producer`."""


class ClientHook:
    """Start and end of a hook's own resources. A hook may use the client, for example open a producer of its
    own."""

    async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
        """Called when the client has been opened. Tasks started in `tasks` are cancelled when the client
        closes. An error, or taking longer than OPEN_S, makes opening the client fail."""
        await anyio.lowlevel.checkpoint()

    async def close(self) -> None:
        """Called before the client closes, while it still works. Cancelled after CLOSE_S; if the client is
        left because of a cancellation, cancelled at the first checkpoint."""
        await anyio.lowlevel.checkpoint()


# --- sends --------------------------------------------------------------------------------------------------


class Mode(Enum):
    """How a send is made (Java: CommunicationMode). A send that awaits its answer is SYNC."""

    SYNC = "SYNC"
    ONEWAY = "ONEWAY"


class ClientSendContext(msgspec.Struct, kw_only=True, eq=False):
    """One send or send_batch with all its attempts. The fields from `message_ids` on are set for
    `after_send`. Sends that are gathered into one request have a context each.

    messages    as the application passed them, one unless it is a batch; `before_send` may replace them, see
                `set_property`
    queue       the requested queue; in `after_send` the queue tried last, None when none was tried
    message_ids the producer's ids
    address     of the broker tried last
    attempts    number of attempts
    result      the result if a broker stored the message; None for a one-way send
    error       the error that the application gets instead
    notes       values that hooks keep between `before_send` and `after_send`, each under its own key
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
    notes: dict[object, Any] = {}

    @property
    def topic(self) -> str:
        """The topic of all messages of the send."""
        return self.messages[0].topic

    @property
    def namespace(self) -> str:
        """The namespace within the topic's name, empty when it has none."""
        return namespace_of(self.topic)

    @property
    def message_type(self) -> MessageType:
        """Normal, ordered, delayed or half message of a transaction, according to the first message."""
        return message_type(self.messages[0].all_properties())

    def tried(self, queue: MessageQueue | None, address: str | None, attempts: int) -> None:
        """Record the latest attempt."""
        self.queue, self.address, self.attempts = queue, address, attempts

    def set_property(self, name: str, value: str) -> None:
        """Add a property to every message."""
        self.messages = [
            msgspec.structs.replace(message, properties={**message.properties, name: value})
            for message in self.messages
        ]


class ClientSendHook(ClientHook):
    """Called around each send. Java calls its hook around each attempt; here one pair of calls covers all
    attempts."""

    def before_send(self, context: ClientSendContext) -> None:
        """Called before the messages are checked and sent. May replace `context.messages`."""

    def after_send(self, context: ClientSendContext) -> None:
        """Called when the send has ended, with `context.result` or `context.error` set."""


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
    """Called before each attempt of a send."""

    @abstractmethod
    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        """Forbid the attempt by raising an error. The application gets that error; nothing is sent and there
        is no retry."""


@define(slots=True, kw_only=True)
class EndTransactionContext:
    """The end of one transaction, about to be sent to the broker at `address`.

    message     the half message: as it was sent by this client, or as a broker asked for it
    message_id  the producer's id
    from_check  whether a broker has asked for the outcome
    """

    client_id: str
    group: str
    message: Message | ReceivedMessage
    message_id: str
    transaction_id: str | None
    state: TransactionState
    from_check: bool
    address: str


class EndTransactionHook(ClientHook, ABC):
    """Called for the ends of transactions."""

    @abstractmethod
    def end_transaction(self, context: EndTransactionContext) -> None:
        """Called before a broker is told how a transaction has ended."""


# --- consumption --------------------------------------------------------------------------------------------


class ConsumeReturnType(IntEnum):
    """How consuming ended (Java: ConsumeReturnType). Trace records contain these numbers."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


@define(slots=True, kw_only=True)
class ClientConsumeContext:
    """Messages of one queue that the application processes. `result` is set for `after_consume`.

    For a push consumer the context covers one message, or those of one queue in a batch, while the handler
    runs: SUCCESS, EXCEPTION when the handler raised, FAILED when it was cancelled. For a delivery without a
    block, it begins and ends when the delivery is settled. For `pull`, and for the messages of one queue that
    a lite pull consumer hands out, it ends at once with SUCCESS; `pulled` is then true.
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
        """Whether consuming succeeded."""
        return self.result is ConsumeReturnType.SUCCESS

    @property
    def status(self) -> str:
        """The status by its name in Java."""
        return "CONSUME_SUCCESS" if self.success else "RECONSUME_LATER"

    @property
    def namespace(self) -> str:
        """The namespace within the topic's name, empty when it has none."""
        return namespace_of(self.queue.topic)


class ClientConsumeHook(ClientHook):
    """Called around the application's processing of messages."""

    def before_consume(self, context: ClientConsumeContext) -> None:
        """Called before the messages are delivered to the application."""

    def after_consume(self, context: ClientConsumeContext) -> None:
        """Called when the application has finished with the messages; `context.result` tells how."""


@define(slots=True, kw_only=True)
class FilterMessageContext:
    """Pulled messages that passed the tag filter. A hook removes from `messages` those that the application
    must not see; they count as read."""

    client_id: str
    group: str
    queue: MessageQueue
    messages: list[ReceivedMessage]
    unit_mode: bool = False


class FilterMessageHook(ClientHook, ABC):
    """Called for the messages of each pull after the exact tag filter."""

    @abstractmethod
    def filter_messages(self, context: FilterMessageContext) -> None:
        """Remove from `context.messages` the messages that the application must not see."""


# --- calling them -------------------------------------------------------------------------------------------


class ClientHooks:
    """The hooks of one client, by kind. Raises PluginError for an object that implements no kind of hook, or
    that has coroutine functions where plain functions are required."""

    def __init__(self, client_id: str, hooks: Iterable[ClientHook | CallHook] = ()) -> None:
        given = Hooks.of("client hook", hooks).checked((ClientHook, CallHook), _METHODS)
        self._client_id = client_id
        self._all: list[ClientHook] = [hook for hook in given if isinstance(hook, ClientHook)]
        self._opened: list[ClientHook] = []
        self.calls = _of(CallHook, given)
        self.filters = _of(FilterMessageHook, given)  # type: ignore[type-abstract]
        self.forbidding = _of(CheckForbiddenHook, given)  # type: ignore[type-abstract]
        self._sends = _of(ClientSendHook, given)
        self._ends = _of(EndTransactionHook, given)  # type: ignore[type-abstract]
        self._consumes = _of(ClientConsumeHook, given)
        #: Whether any hook needs the messages of a send.
        self.see_sends = bool(self._sends.entries or self.forbidding.entries)

    async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
        """Open the hooks in order. If one raises or takes too long (ClientError), the hooks before it are
        closed and the error is raised."""
        self._opened = []
        try:
            for hook in self._all:
                with anyio.move_on_after(OPEN_S) as scope:
                    await hook.open(client, tasks)
                    self._opened.append(hook)
                if scope.cancelled_caught:
                    raise ClientError(f"client hook {type(hook).__name__} did not open within {OPEN_S:.0f} s")
        except BaseException:
            await self.close(in_peace=False)
            raise

    async def close(self, in_peace: bool) -> None:
        """Close the open hooks in reverse order, even if some of them raise."""
        with anyio.move_on_after(CLOSE_S if in_peace else 0, shield=True) as scope:
            for hook in reversed(self._opened):
                try:
                    await hook.close()
                except Exception:
                    log.exception("client hook %s failed to close", type(hook).__name__)
        if scope.cancelled_caught and in_peace:
            log.warning("the hooks of a client did not close within %s s", CLOSE_S)

    def sending(self, group: str, mode: Mode, messages: list[Message], queue: MessageQueue | None) -> Sending:
        """Call the send hooks around one send: `with hooks.sending(...) as context: ...`. The caller fills in
        the context meanwhile."""
        return Sending(
            self._sends,
            ClientSendContext(
                client_id=self._client_id, group=group, mode=mode, messages=messages, queue=queue
            ),
        )

    def unseen(self, group: str, messages: list[Message]) -> ClientSendContext:
        """The context of a request that carries the messages of several sends. The send hooks see those."""
        return ClientSendContext(client_id=self._client_id, group=group, mode=Mode.SYNC, messages=messages)

    def check(self, context: ClientSendContext, queue: MessageQueue, address: str) -> None:
        """Call the CheckForbiddenHooks before one attempt. Raises the error of a hook that forbids it."""
        if self.forbidding.entries:
            asked = CheckForbiddenContext(
                client_id=self._client_id,
                group=context.group,
                mode=context.mode,
                messages=context.messages,
                queue=queue,
                address=address,
            )
            for entry in self.forbidding.entries:
                entry.call("check_forbidden", asked)

    def ending(
        self, header: EndTransactionRequestHeader, message: Message | ReceivedMessage, address: str
    ) -> None:
        """Tell the hooks how a transaction ends."""
        if self._ends.entries:
            context = EndTransactionContext(
                client_id=self._client_id,
                group=header.producer_group,
                message=message,
                message_id=header.msg_id or "",
                transaction_id=header.transaction_id,
                state=TransactionState(header.commit_or_rollback),
                from_check=bool(header.from_transaction_check),
                address=address,
            )
            self._ends.notify("end_transaction", context)

    def filtered(
        self, group: str, queue: MessageQueue, messages: tuple[ReceivedMessage, ...]
    ) -> tuple[ReceivedMessage, ...]:
        """The messages of a pull that the filter hooks leave."""
        if not messages or not len(self.filters):
            return messages
        context = FilterMessageContext(
            client_id=self._client_id, group=group, queue=queue, messages=list(messages)
        )
        self.filters.notify("filter_messages", context)
        if not isinstance(context.messages, list):
            log.error(
                "a hook replaced the messages of a pull by other objects; the original messages are returned"
            )
            return messages
        left = {id(message) for message in context.messages}
        return tuple(message for message in messages if id(message) in left)

    def consuming(
        self, group: str, queue: MessageQueue, messages: Sequence[ReceivedMessage], *, pulled: bool = False
    ) -> ClientConsumeContext | None:
        """Tell the hooks that messages are delivered to the application; None when there is no hook. The
        caller must call `consumed` afterwards."""
        if not messages or not len(self._consumes):
            return None
        context = ClientConsumeContext(
            client_id=self._client_id, group=group, queue=queue, messages=messages, pulled=pulled
        )
        self._consumes.notify("before_consume", context)
        return context

    def consumed(self, context: ClientConsumeContext | None, result: ConsumeReturnType) -> None:
        """Tell the hooks the result of what `consuming` started."""
        if context is not None:
            context.result = result
            self._consumes.notify("after_consume", context)


class Sending:
    """One send, with the send hooks called before and after it. A context manager in a class, because a
    generator costs every send more than the rest of its hooks."""

    __slots__ = ("_context", "_hooks")

    def __init__(self, hooks: Hooks[ClientSendHook], context: ClientSendContext) -> None:
        self._hooks = hooks
        self._context = context

    def __enter__(self) -> ClientSendContext:
        if self._hooks.entries:
            self._before(self._context)
        return self._context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hooks.entries:
            self._context.error = error
            self._hooks.notify("after_send", self._context)

    def _before(self, context: ClientSendContext) -> None:
        given = context.messages
        context.messages = list(given)
        self._hooks.notify("before_send", context)
        if len(context.messages) != len(given) or not all(
            isinstance(message, Message) for message in context.messages
        ):
            log.error(
                "a hook replaced the messages of a send by other objects; the original messages are sent"
            )
            context.messages = list(given)


#: Methods that must be plain functions.
_METHODS = (
    "before_send",
    "after_send",
    "check_forbidden",
    "end_transaction",
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
    "EndTransactionContext",
    "EndTransactionHook",
    "FilterMessageContext",
    "FilterMessageHook",
    "HookProducer",
    "HookedClient",
    "Mode",
]
