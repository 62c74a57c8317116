"""What plugins add to access control: rules as functions, and ways to prove who sends a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from rmqkit.errors import DecodeError
from rmqkit.model.buffer import Buffer
from rmqkit.model.names import is_system_topic
from rmqkit.model.properties import REAL_TOPIC
from rmqkit.plugin.request import Caller
from rmqkit.protocol.command import Command
from rmqkit.protocol.record import unpack

#: `allow(principal, action, resource, source)` decides about one action of one user, before the policies:
#: True and False decide, None leaves it to them. `resource` is `Topic:NAME`, `Group:NAME` or `Cluster:NAME`,
#: `action` one of Pub, Sub, Create, Update, Delete, Get and List, `source` the address of the peer. Called
#: for each request in the event loop: it must not block. An exception refuses the request.
Allow = Callable[[str, str, str, str], "bool | None"]

#: The attribute of a `Caller` that holds the name of the user that access control has found out for the
#: connection, by its certificate or by a token. A signed request names its user itself.
PRINCIPAL = "acl.principal"
#: The attribute of a `Caller` that holds a function `(request, topic)`, see `check_read`.
READ_CHECK = "acl.read-check"


def check_read(caller: Caller, request: Command, record: Buffer) -> None:
    """Ask access control whether the sender of a request may read a record. For processors of requests that
    name a place in the log, so that only the record there says the topic. Raises RequestRefused."""
    check = caller.attributes.get(READ_CHECK)
    if check is not None:
        check(request, _topic_of(record))  # type: ignore[operator]


def only_of(caller: Caller, topic: str, records: Iterable[Buffer]) -> Iterable[Buffer]:
    """The records that are of a topic, where access control is on. For queries by key: a key can be made
    whose hash is that of a key of another topic."""
    if READ_CHECK not in caller.attributes:
        return records
    return [record for record in records if _topic_of(record) == topic]


def _topic_of(record: Buffer) -> str:
    """The topic of a record, of a parked one that for which it is meant; empty when it cannot be read."""
    try:
        found = unpack(record, check_crc=False)
    except DecodeError:
        return ""
    return found.properties.get(REAL_TOPIC, found.topic) if is_system_topic(found.topic) else found.topic


class TokenVerifier(ABC):
    """Finds out whose a security token is (header field `SecurityToken` of a request without access key)."""

    @abstractmethod
    def principal(self, token: str) -> str | None:
        """The name of the user; None for a token of another kind, of which the next verifier is asked. Must
        not block: what has to be fetched is fetched by a task of the verifier. Raises RequestRefused for a
        token of its kind that is not valid, with a text that does not have the token."""


__all__ = ["PRINCIPAL", "READ_CHECK", "Allow", "TokenVerifier", "check_read", "only_of"]
