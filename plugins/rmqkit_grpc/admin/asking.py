"""Questions to several brokers at once, and what the answers of administration have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from rmqkit.model import names
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Steps
from rmqkit_grpc.statuses import Refusal, checked

_Resource = V2.messages["Resource"]
_Queue = V2.messages["MessageQueue"]
_Body = TypeVar("_Body")
#: Codes of a broker that has nothing to say, where another one may have.
NOTHING = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SYSTEM_ERROR,
    }
)


def ask(
    exchange: Exchange, brokers: Iterable[str], code: int, header: Callable[[], msgspec.Struct], **fields: str
) -> Steps:
    """The answers of brokers that have one: [(broker, answer)]. Raises Refusal with what the last one has
    said when none has."""
    asked = list(brokers)
    if not asked:
        raise Refusal(Code.NOT_FOUND, "there is no broker to ask")
    answers: Sequence[Command] = yield [
        exchange.command(code, header(), fields={"bname": name, **fields}) for name in asked
    ]
    found = [(name, each) for name, each in zip(asked, answers, strict=True) if not each.code]
    for each in answers:
        if each.code not in NOTHING:
            checked(each)
    if not found:
        checked(answers[-1])
    return found


def resource(name: str) -> Any:
    """A topic or a group as clients name it."""
    return _Resource(name=names.without_namespace(name), resource_namespace=names.namespace_of(name))


def queue_of(queue: MessageQueue) -> Any:
    """A queue as clients name it."""
    made = _Queue(topic=resource(queue.topic), id=queue.queue_id)
    made.broker.name = queue.broker_name
    return made


__all__ = ["NOTHING", "ask", "queue_of", "resource"]
