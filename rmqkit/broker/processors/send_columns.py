"""The messages of a run of sends while they are collected: values here, columns in the compiled part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from attrs import frozen

from rmqkit.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6
from rmqkit.plugin.hooks import SendRun
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.protocol.tags import tags_code
from rmqkit.speedups import IN_USE
from rmqkit.speedups.sends import Names, PutColumns

_UNIQ_KEY, _TAGS, _WAIT, _PROPERTY_END = props.UNIQ_KEY, props.TAGS, props.WAIT, props.PROPERTY_END
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)


@frozen
class Collecting:
    """How one broker collects messages.

    watched         names of properties that need a closer look at a message
    suffix          the text that a broker adds to the properties of a plain send
    host_bits       bits that are set in the system flags of all messages, for the broker's own address
    client_bits     bits of the system flag that senders may set
    max_body_bytes  a larger body is refused
    """

    watched: frozenset[str]
    suffix: str
    host_bits: int
    client_bits: int
    max_body_bytes: int


class PutList(list[PutMessage]):
    """Messages of sends, in order. `sizes`: number of messages of each send, None when each send has one."""

    sizes: list[int] | None = None

    def __init__(self, how: Collecting) -> None:
        self._how = how
        self._sends = 0

    def take(self, sends: SendRun, at: int, topics: dict[str, int]) -> int:
        """Add the plain sends from number `at` on, each a message: those to a queue of `topics` (number of
        queues of topics that need no further check), with a unique key, and without a watched property.
        Returns the number of the first send that needs a closer look."""
        how, queues_of, add = self._how, topics.get, self.append
        watched, max_body_bytes, suffix = how.watched, how.max_body_bytes, how.suffix
        client_bits = how.client_bits
        peer, born_host, host_bits = None, b"", 0
        requests, headers, all_properties, first = sends.requests, sends.headers, sends.properties, at
        for at in range(first, len(headers)):
            if sends.peers[at] is not peer:
                peer = sends.peers[at]
                born_host = peer.remote_host
                host_bits = how.host_bits | born_bits(born_host)
            request, properties = requests[at], all_properties[at]
            header: Any = headers[at]
            body, queue_id = request.body, header.queue_id
            if (
                type(header) is not SendMessageRequestHeaderV2
                or not 0 < len(body) <= max_body_bytes
                or not 0 <= queue_id < queues_of(header.topic, 0)
                or header.batch
                or request.code == _SEND_BATCH
                or _UNIQ_KEY not in properties
                or not watched.isdisjoint(properties)
            ):
                break
            text = header.properties or ""
            stored = (text + suffix if text[-1] == _PROPERTY_END else text + _PROPERTY_END + suffix).encode()
            if len(stored) > MAX_PROPERTIES_BYTES:
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
                    properties.get(_WAIT) != "false",
                )
            )
        else:
            at = len(headers)
        self._note(at - first, 1)
        return at

    def take_batch(
        self, topic: str, queue_id: int, header: object, body: bytes, born_host: bytes, further_bits: int
    ) -> int:
        """Add the messages of a plain batch, all or none. `further_bits` are set in the system flags of all.
        Returns their number: 0, for every batch needs a closer look here."""
        return 0

    def add(self, messages: Iterable[PutMessage], key: str | None) -> None:
        """Add the messages of one send; `key` is the unique key of its request."""
        before = len(self)
        self += messages
        self._note(1, len(self) - before)

    def leave_out(self) -> None:
        """Count a send without messages."""
        self._note(1, 0)

    def _note(self, sends: int, size: int) -> None:
        """Count sends of so many messages each."""
        if size != 1 and self.sizes is None:
            self.sizes = [1] * self._sends
        if self.sizes is not None:
            self.sizes += [size] * sends
        self._sends += sends


#: Gives an empty run.
Collector = Callable[[], PutList | PutColumns]


def born_bits(born_host: bytes) -> int:
    """The bits of the system flag that say how wide this address of a sender is."""
    return BORN_HOST_V6 if len(born_host) > 8 else 0


def collector(how: Collecting) -> Collector:
    """With the compiled part where it runs."""
    if not IN_USE:
        return partial(PutList, how)
    names, suffix = Names(how.watched), how.suffix.encode()

    def columns() -> PutColumns:
        return PutColumns(
            names, suffix, how.host_bits, how.client_bits, how.max_body_bytes, MAX_PROPERTIES_BYTES,
            MAX_BATCH_MESSAGES,
        )  # fmt: skip

    return columns


__all__ = ["Collecting", "Collector", "PutList", "born_bits", "collector"]
