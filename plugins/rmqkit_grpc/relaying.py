"""What a broker asks of a client, over its Telemetry: the outcome of a transaction, a thread dump, the
trial of a message; and what it tells one, that a lite topic is no longer its (gRPC sheet, section 6). The
answers for dumps and trials go back as those of remoting clients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from rmqkit.model import names
from rmqkit.protocol.codes import FLAG_RESPONSE, RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import NotifyUnsubscribeLiteRequestHeader
from rmqkit_grpc.delivering import Delivery, stored_in
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Session, name_of
from rmqkit_grpc.transactions import question_of

_Telemetry = V2.messages["TelemetryCommand"]
_Resource = V2.messages["Resource"]
#: Codes of a client for a message that it has tried (Java: CMResult).
_RESULTS = {Code.OK: "CR_SUCCESS", Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER"}
_nonces = count()
_OTHERWISE = "CR_THROW_EXCEPTION"


def asked_of(session: Session, command: Command) -> Any:
    """A request of the broker as a command for a client; None for one that these clients do not understand.
    Raises DecodeError, HeaderError."""
    make = _QUESTIONS.get(command.code)
    return None if make is None else make(session, command)


def reconnection() -> Any:
    """The command of a server that stops: close the connection, and dial again."""
    command = _Telemetry()
    command.reconnect_endpoints_command.nonce = f"{next(_nonces)}"
    return command


def _thread_dump(session: Session, command: Command) -> Any:
    asked = _Telemetry()
    asked.print_thread_stack_trace_command.nonce = str(command.opaque)
    return asked


def _trial(session: Session, command: Command) -> Any:
    (stored,) = stored_in(command.body)
    asked = _Telemetry()
    asked.verify_message_command.nonce = str(command.opaque)
    topic = _resource(session, stored.topic)
    asked.verify_message_command.message.CopyFrom(Delivery(topic).message(stored))
    return asked


def _lost_lite_topic(session: Session, command: Command) -> Any:
    told = _Telemetry()
    told.notify_unsubscribe_lite_command.lite_topic = command.header(
        NotifyUnsubscribeLiteRequestHeader
    ).lite_topic
    return told


def _resource(session: Session, topic: str) -> Any:
    """A topic as its consumer calls it."""
    if session.is_consumer:
        for each in session.settings.subscription.subscriptions:
            if name_of(each.topic) == topic:
                return each.topic
    return _Resource(name=names.without_namespace(topic), resource_namespace=names.namespace_of(topic))


def answer_of(said: Any) -> Command | None:
    """What a client has said to a question, as the answer that the broker waits for; None for anything
    else."""
    kind = said.WhichOneof("command")
    if kind == "thread_stack_trace":
        return _answer(
            said.thread_stack_trace.nonce,
            {
                "jstack": said.thread_stack_trace.thread_stack_trace,
                "mqTable": {},
                "properties": {},
                "statusTable": {},
                "subscriptionSet": [],
            },
        )
    if kind == "verify_message_result":
        return _answer(
            said.verify_message_result.nonce,
            {
                "autoCommit": True,
                "consumeResult": _RESULTS.get(said.status.code, _OTHERWISE),
                "order": False,
                "remark": said.status.message,
                "spentTimeMills": 0,
            },
        )
    return None


def _answer(nonce: str, body: dict[str, Any]) -> Command | None:
    """The answer to the request of that number; None for a number that the broker never gave."""
    if not (nonce.isascii() and nonce.isdigit() and len(nonce) < 11):
        return None
    return Command(opaque=int(nonce), flag=FLAG_RESPONSE, body=msgspec.json.encode(body))


_QUESTIONS: dict[int, Callable[[Session, Command], Any]] = {
    RequestCode.CHECK_TRANSACTION_STATE: question_of,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _thread_dump,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _trial,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: _lost_lite_topic,
}

__all__ = ["answer_of", "asked_of"]
