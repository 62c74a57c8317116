"""The SendMessageHooks of a broker: what they are told of a send, and when (behaviour sheet, C14; Java: AbstractSendMessageProcessor)."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from rmqkit.abc import Appended, Peer
from rmqkit.broker.context import BrokerContext
from rmqkit.errors import PluginError, RequestRefused
from rmqkit.hook_calls import HookEntry, Hooks
from rmqkit.hooks import ManySendsHook, SendContext, SendMessageHook, SentTogether
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import message_type
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rmqkit.protocol.message_id import host_text


class WatchedSend:
    """A send whose hooks were asked and want to know the end."""

    __slots__ = ("_context", "_hooks")

    def __init__(self, hooks: Hooks[SendMessageHook], context: SendContext) -> None:
        self._hooks = hooks
        self._context = context

    def ended(
        self,
        code: int,
        remark: str | None = None,
        message_id: str | None = None,
        messages: Sequence[PutMessage] = (),
        landed: Sequence[Appended] = (),
    ) -> None:
        """Code and remark of the answer; what was stored and where, when something was."""
        context = self._context
        context.code, context.remark, context.message_id = code, remark, message_id
        if landed:
            context.messages, context.landed, context.queue_offset = messages, landed, landed[0].queue_offset
        self._hooks.tell("after", context)


class SendHooks:
    """Raises PluginError when a hook is none."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._hooks = broker.registry.send_message_hooks.checked(SendMessageHook, ("before", "after", "after_many"))
        for entry in self._hooks.entries:
            if isinstance(entry.hook, ManySendsHook) and type(entry.hook).before is not SendMessageHook.before:
                raise PluginError(f"{entry.title} is a ManySendsHook and overrides before, which would not always be called")

    @classmethod
    def for_broker(cls, broker: BrokerContext) -> SendHooks | None:
        """None when no plugin brings any."""
        return cls(broker) if len(broker.registry.send_message_hooks) else None

    def before(
        self,
        request: Command,
        header: SendMessageRequestHeader | SendMessageRequestHeaderV2,
        properties: dict[str, str],
        peer: Peer,
        now_ms: int,
    ) -> WatchedSend:
        """Ask all. Raises RequestRefused when one refuses; those asked before it are told the end at once."""
        context = SendContext(
            request=request,
            producer_group=header.producer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            body_bytes=len(request.body),
            properties=MappingProxyType(properties),
            message_type=message_type(properties),
            born_host=host_text(peer.remote_host),
            born_timestamp_ms=header.born_timestamp,
            request_timestamp_ms=now_ms,
            broker_address=self._broker.address,
            region_id=self._broker.config.region_id,
            unique_key=properties.get(props.UNIQ_KEY),
        )
        asked: list[HookEntry[SendMessageHook]] = []
        for entry in self._hooks.entries:
            try:
                entry.call("before", context)
            except RequestRefused as refusal:
                WatchedSend(Hooks(self._hooks.kind, asked), context).ended(refusal.code, refusal.remark)
                raise
            except Exception:  # noqa: BLE001 - the contract of send hooks: only a refusal counts
                entry.failed("before")
            asked.append(entry)
        return WatchedSend(self._hooks, context)

    def after_many(
        self,
        peer: Peer,
        requests: Sequence[Command],
        messages: Sequence[PutMessage],
        landed: Sequence[Appended],
        code: int,
        remark: str | None = None,
    ) -> None:
        """Tell all how plain sends ended. There are plain sends only when all are ManySendsHooks."""
        self._hooks.tell("after_many", SentTogether(peer, requests, messages, landed, code, remark))
