"""The messages of a run of sends while they are collected: values here, columns in the compiled part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

from attrs import frozen

from rmqkit.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6
from rmqkit.plugin.hooks import SendHeader, SendRun
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.protocol.tags import tags_code
from rmqkit.speedups import IN_USE

#: Codes of requests that hold several messages.
BATCH_CODES = frozenset({int(RequestCode.SEND_BATCH_MESSAGE)})
_TAGS, _WAIT, _NO_WAIT, _PROPERTY_END = props.TAGS, props.WAIT, props.NO_WAIT, props.PROPERTY_END


@frozen
class PlainSend:
    """What a plain send is, and what a broker stores of it. A plain send holds one message: its header is of
    the type `header`, its code is none of `batch_codes`, and the header's field `batch` is not set. Its body
    has 1 to `max_body_bytes`. Among its properties are `key` and none of `watched`; with `suffix` they have
    at most `max_properties_bytes` in stored form.

    suffix       the text that a broker adds to the properties of a plain send
    host_bits    bits that are set in the system flags of all messages, for the broker's own address
    client_bits  bits of the system flag that senders may set
    max_batch_messages  number of messages that a batch may hold
    """

    watched: frozenset[str]
    suffix: str
    host_bits: int
    client_bits: int
    max_body_bytes: int
    header: type[SendMessageRequestHeaderV2] = SendMessageRequestHeaderV2
    batch_codes: frozenset[int] = BATCH_CODES
    batch: str = "batch"
    key: str = props.UNIQ_KEY
    max_properties_bytes: int = MAX_PROPERTIES_BYTES
    max_batch_messages: int = MAX_BATCH_MESSAGES

    def stored(self, text: str) -> bytes:
        """The stored form of properties, which are not empty, with the suffix."""
        return (
            text + self.suffix if text[-1] == _PROPERTY_END else text + _PROPERTY_END + self.suffix
        ).encode()


class PlainSends(Protocol):
    """The messages of a run of sends, collected send by send."""

    @property
    def messages(self) -> Sequence[PutMessage]:
        """All of them, in order."""
        ...

    @property
    def sizes(self) -> Sequence[int] | None:
        """Number of messages of each send, None when each send has one."""
        ...

    def take(self, sends: SendRun, at: int, topics: dict[str, int]) -> int:
        """Add the plain sends from number `at` on, each a message: those to a queue of `topics`, which has
        the number of queues of topics that need no further check. Returns the number of the first send that
        needs a closer look."""
        ...

    def take_batch(
        self, topic: str, queue_id: int, header: SendHeader, body: bytes, born_host: bytes, further_bits: int
    ) -> int:
        """Add the messages of a plain batch, all or none. `further_bits` are set in the system flags of all.
        Returns their number; 0 for a batch that needs a closer look."""
        ...

    def add(self, messages: Iterable[PutMessage], key: str | None) -> None:
        """Add the messages of one send; `key` is the unique key of its request."""
        ...

    def leave_out(self) -> None:
        """Count a send without messages."""
        ...

    def __len__(self) -> int: ...


class PutList(list[PutMessage]):
    """PlainSends as values."""

    def __init__(self, rule: PlainSend) -> None:
        self._rule = rule
        self._sends = 0
        self.sizes: list[int] | None = None

    @property
    def messages(self) -> Sequence[PutMessage]:
        return self

    def take(self, sends: SendRun, at: int, topics: dict[str, int]) -> int:
        rule, queues_of, add, is_batch = self._rule, topics.get, self.append, attrgetter(self._rule.batch)
        plain_header, batch_codes, key, watched = rule.header, rule.batch_codes, rule.key, rule.watched
        max_body_bytes, max_properties_bytes = rule.max_body_bytes, rule.max_properties_bytes
        client_bits, stored_of = rule.client_bits, rule.stored
        peer, born_host, host_bits = None, b"", 0
        requests, headers, all_properties, first = sends.requests, sends.headers, sends.properties, at
        for at in range(first, len(headers)):
            if sends.peers[at] is not peer:
                peer = sends.peers[at]
                born_host = peer.remote_host
                host_bits = rule.host_bits | born_bits(born_host)
            request, properties = requests[at], all_properties[at]
            header: Any = headers[at]
            body, queue_id = request.body, header.queue_id
            if (
                type(header) is not plain_header
                or not 0 < len(body) <= max_body_bytes
                or not 0 <= queue_id < queues_of(header.topic, 0)
                or is_batch(header)
                or request.code in batch_codes
                or key not in properties
                or not watched.isdisjoint(properties)
            ):
                break
            # Not empty: there is a unique key.
            stored = stored_of(header.properties or "")
            if len(stored) > max_properties_bytes:
                break
            tags = properties.get(_TAGS)
            add(
                PutMessage(
                    header.topic,
                    queue_id,
                    body,
                    properties,
                    stored,
                    header.flag,
                    header.sys_flag & client_bits | host_bits,
                    header.born_timestamp,
                    born_host,
                    header.reconsume_times or 0,
                    0,
                    tags_code(tags) if tags else 0,
                    properties.get(_WAIT) != _NO_WAIT,
                )
            )
        else:
            at = len(headers)
        self._note(at - first, 1)
        return at

    def take_batch(
        self, topic: str, queue_id: int, header: SendHeader, body: bytes, born_host: bytes, further_bits: int
    ) -> int:
        # The properties of each message are decoded for the closer look, which is then all of the work.
        return 0

    def add(self, messages: Iterable[PutMessage], key: str | None) -> None:
        before = len(self)
        self += messages
        self._note(1, len(self) - before)

    def leave_out(self) -> None:
        self._note(1, 0)

    def _note(self, sends: int, size: int) -> None:
        """Count sends of so many messages each."""
        if size != 1 and self.sizes is None:
            self.sizes = [1] * self._sends
        if self.sizes is not None:
            self.sizes += [size] * sends
        self._sends += sends


class NewCollector(Protocol):
    def __call__(self, rule: PlainSend) -> Callable[[], PlainSends]:
        """Gives empty runs by this rule."""
        ...


def born_bits(born_host: bytes) -> int:
    """The bits of the system flag that say how wide this address of a sender is."""
    return BORN_HOST_V6 if len(born_host) > 8 else 0


def is_batch(request: Command, header: SendHeader) -> bool:
    """Whether a send holds several messages."""
    return bool(header.batch) or request.code in BATCH_CODES


def listed(rule: PlainSend) -> Callable[[], PlainSends]:
    """Gives empty runs of values."""
    return partial(PutList, rule)


if IN_USE:
    from rmqkit.broker.processors import _sends

collector: NewCollector = _sends.Collector if IN_USE else listed

__all__ = ["PlainSend", "PlainSends", "PutList", "born_bits", "collector", "is_batch", "listed"]
