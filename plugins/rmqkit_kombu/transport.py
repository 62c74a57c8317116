"""The transport of Kombu: channels whose queues are topics."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from importlib.metadata import version
from queue import Empty
from time import monotonic, sleep
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.exchange import DirectExchange, FanoutExchange, TopicExchange
from kombu.utils.json import dumps, loads

from rmqkit.client import (
    BrokerError,
    BrokerUnknown,
    ConnectFailed,
    ConnectionLost,
    Lease,
    MessageIllegal,
    NameServersUnreachable,
    NoRoute,
    RequestTimeout,
    SendFailed,
)
from rmqkit.model import properties as props
from rmqkit_kombu.session import Session

log = logging.getLogger(__name__)

#: How long a channel waits for messages before it lets its caller look around.
_WAIT_S: Final = 1.0
#: The farthest time for which brokers keep a message unless they are told otherwise, less a margin.
_FARTHEST_S: Final = 3 * 86_400 - 600
_DEFAULT_PORT: Final = 9876
_MAX_PRIORITY: Final = "x-max-priority"
#: Exchanges of other types than fanout that broadcast: those of Celery's events and of replies to its remote
#: control, which come to queues of other processes.
_BROADCASTING: Final = ("celeryev", "*.pidbox")


class _Direct(DirectExchange):  # type: ignore[misc]
    """Gives messages to the queues that this process has bound, or broadcasts."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **keywords: Any) -> None:
        """Send a message that was published to an exchange of the type. Raises RmqError."""
        if self.channel.broadcasts(exchange):
            self.channel._put_fanout(exchange, message, routing_key)
        else:
            super().deliver(message, exchange, routing_key, **keywords)


class _Topic(TopicExchange):  # type: ignore[misc]
    """Gives messages to the queues that this process has bound, or broadcasts."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **keywords: Any) -> None:
        """Send a message that was published to an exchange of the type. Raises RmqError."""
        if self.channel.broadcasts(exchange):
            self.channel._put_fanout(exchange, message, routing_key)
        else:
            super().deliver(message, exchange, routing_key, **keywords)


class Channel(virtual.Channel):  # type: ignore[misc]
    """Leases messages from the topics of its queues. Without an acknowledgement they stay with this process,
    and come again when it ends."""

    #: A lease that is not settled ends, and its message comes again: nothing has to be sent once more.
    do_restore = False
    supports_fanout = True
    exchange_types: Any = {"direct": _Direct, "topic": _Topic, "fanout": FanoutExchange}  # noqa: RUF012 - Kombu's

    def __init__(self, connection: Transport, **keywords: Any) -> None:
        super().__init__(connection, **keywords)
        self._session: Session = connection.session
        self._leases: dict[str, Lease] = {}
        self._without_ack: set[str] = set()
        #: The priorities of queues that were declared with them.
        self._priorities: dict[str, int] = {}
        options = connection.client.transport_options
        self._uses_timers: bool = options.get("eta_timers", True)
        self._broadcasting: Sequence[str] = options.get("broadcast_exchanges", _BROADCASTING)

    # --- queues ---------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any], **keywords: Any) -> dict[str, Any]:
        """The arguments of a queue, `x-max-priority` for its `max_priority` among them."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **keywords)
        return prepared

    def _new_queue(self, queue: str, **keywords: Any) -> None:
        highest = (keywords.get("arguments") or {}).get(_MAX_PRIORITY)
        if highest is not None:
            self._priorities[queue] = int(highest) + 1
        if keywords.get("auto_delete"):
            # Most are bound to exchanges that broadcast, which is not known yet, and need no topic.
            self._session.declare_later(queue)
        else:
            self._session.declare(queue, self._priorities.get(queue))

    def broadcasts(self, exchange: str) -> bool:
        """Whether messages to an exchange reach the queues of all processes that are bound to it."""
        kind: str = self.typeof(exchange).type
        return kind == "fanout" or any(fnmatchcase(exchange, each) for each in self._broadcasting)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if not self.broadcasts(exchange):
            return
        kind = self.typeof(exchange).type
        if kind == "fanout":
            self._session.bind(queue, exchange, lambda _: True)
        elif kind == "topic" and pattern is not None:
            matches = re.compile(pattern).match
            self._session.bind(queue, exchange, lambda key: matches(key) is not None)
        else:
            self._session.bind(queue, exchange, routing_key.__eq__)

    def _delete(self, queue: str, *arguments: Any, **keywords: Any) -> None:
        super()._delete(queue, *arguments, **keywords)
        self._session.forget(queue)

    def _size(self, queue: str) -> int:
        return self._session.size(queue)

    def _purge(self, queue: str) -> int:
        return self._session.purge(queue)

    # --- messages -------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        priorities = self._priorities.get(queue)
        asked = message["properties"].get("priority") or 0
        self._session.send(
            queue,
            dumps(message).encode(),
            properties=timer_of(message) if self._uses_timers else {},
            priority=None if priorities is None else max(0, min(int(asked), priorities - 1)),
        )

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str | None, **_: Any) -> None:
        self._session.broadcast(exchange, dumps(message).encode(), routing_key or "")

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for _, received in self._session.receive([queue], timeout or 0):
            payload = self._payload(received)
            if payload is not None:
                return payload
        raise Empty

    def _payload(self, received: Lease | bytes) -> dict[str, Any] | None:
        """What Kombu has sent, under a tag of its own: one message may be in several queues of a channel.
        None for what something else has sent, which becomes a dead letter."""
        lease = received if isinstance(received, Lease) else None
        body = received.message.body if isinstance(received, Lease) else received
        try:
            payload: dict[str, Any] = loads(body.decode())
            properties = payload["properties"]
            delivery = properties["delivery_info"]
        except (ValueError, TypeError, KeyError) as error:
            which = "a broadcast" if lease is None else f"message {lease.message.message_id}"
            log.error("%s is not a message of Kombu: %r", which, error)
            if lease is not None:
                self._session.bury(lease, f"it is not a message of Kombu: {error!r}")
            return None
        tag = properties["delivery_tag"] = self._next_delivery_tag()
        delivery["redelivered"] = lease is not None and lease.message.reconsume_times > 0
        if lease is not None:
            self._leases[tag] = lease
        return payload

    def basic_consume(self, queue: str, no_ack: bool, *arguments: Any, **keywords: Any) -> None:
        """Consume from a queue; with `no_ack` its messages are acknowledged as they are delivered."""
        if no_ack:
            self._without_ack.add(queue)
        else:
            self._without_ack.discard(queue)
        super().basic_consume(queue, no_ack, *arguments, **keywords)

    def basic_get(self, queue: str, no_ack: bool = False, **keywords: Any) -> Any:
        """The next message of a queue, or None."""
        message = super().basic_get(queue, no_ack, **keywords)
        if message is not None and no_ack:
            self._finish(message.delivery_tag)
        return message

    @property
    def wanted(self) -> Sequence[str]:
        """The queues whose messages may be delivered now: those that are consumed, unless as many are out
        without an acknowledgement as the channel wants."""
        return self._active_queues if self._consumers and self.qos.can_consume() else ()

    def deliver(self, queue: str, received: Lease | bytes) -> None:
        """Give a message to the consumer of its queue; a lease goes back if it became too much for this
        channel in the meantime, for others may have it."""
        if isinstance(received, Lease) and not self.qos.can_consume():
            self._session.give_back([received])
        elif (payload := self._payload(received)) is not None:
            if queue in self._without_ack:
                self._finish(payload["properties"]["delivery_tag"])
            self.connection._deliver(payload, queue)

    def _finish(self, delivery_tag: str) -> None:
        lease = self._leases.pop(delivery_tag, None)
        # A closed channel has given it back; a broadcast has none.
        if lease is not None:
            self._session.finish(lease)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message. Raises RmqError when the broker does not answer: it comes again."""
        super().basic_ack(delivery_tag, multiple)
        self._finish(delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have a message delivered again, as another attempt, or move it to the dead letters. Raises RmqError
        when the broker does not answer."""
        self.qos.ack(delivery_tag)
        lease = self._leases.pop(delivery_tag, None)
        if lease is None:
            return
        if requeue:
            self._session.give_back([lease], counts=True)
        else:
            self._session.bury(lease, "rejected")

    def basic_recover(self, requeue: bool = False) -> None:
        """Have all unacknowledged messages delivered again, as other attempts."""
        if not requeue:
            super().basic_recover(requeue)
        for tag in list(self._leases):
            self.basic_reject(tag, requeue=True)

    def close(self) -> None:
        """Give back what is not acknowledged, for other workers."""
        super().close()
        leases = list(self._leases.values())
        self._leases.clear()
        self._session.give_back(leases)


class Transport(virtual.Transport):  # type: ignore[misc]
    """`transport="rmqkit_kombu:Transport"` of a Kombu connection, `broker_transport` of Celery. The URL is
    `rocketmq://USER:PASSWORD@HOST:PORT/NAMESPACE`.

    Options, of the connection's `transport_options`:

    namesrv        the addresses of several name servers, instead of that of the URL: "a:9876;b:9876"
    group          the beginning of the names of groups, default kombu: the workers of a queue are GROUP-TOPIC
    lease_ms       how long after the end of a killed worker others get its messages, default 60000
    create_topics  whether declared queues and exchanges create missing topics, default True
    eta_timers     whether tasks of Celery that have a time wait at the broker, default True
    broadcast_exchanges  patterns of the names of direct and topic exchanges whose messages reach the queues
                   of all processes, as those of fanout exchanges do; default "celeryev" and "*.pidbox"
    client         further keywords of `BlockingClient`, a mapping
    """

    Channel = Channel
    default_port = _DEFAULT_PORT
    driver_type = driver_name = "rocketmq"
    polling_interval = 0.05
    implements = virtual.Transport.implements.extend(exchange_type=frozenset({"direct", "topic", "fanout"}))
    connection_errors = (
        *virtual.Transport.connection_errors,
        BrokerUnknown,
        ConnectFailed,
        ConnectionLost,
        NameServersUnreachable,
        NoRoute,
        RequestTimeout,
        SendFailed,
    )
    channel_errors = (*virtual.Transport.channel_errors, BrokerError, MessageIllegal)

    session: Session

    def driver_version(self) -> str:
        """The version of rmqkit."""
        return version("rmqkit")

    def establish_connection(self) -> Transport:
        """Open a client for this connection. Raises as `BlockingClient.start`."""
        self.session = self._session()
        self.session.open()
        super().establish_connection()
        return self

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver a message of any queue that is consumed over this connection, as soon as there is one.
        Raises TimeoutError after `timeout` seconds; None waits for ever."""
        end_s = None if timeout is None else monotonic() + timeout
        while True:
            left_s = _WAIT_S if end_s is None else min(_WAIT_S, max(0.0, end_s - monotonic()))
            # The consumer of a queue is the one that came last, for all channels.
            wanted = {queue: channel for channel in self.channels for queue in channel.wanted}
            found = self.session.receive(list(wanted), left_s) if wanted else []
            for queue, received in found:
                wanted[queue].deliver(queue, received)
            if found:
                return
            if end_s is not None and monotonic() >= end_s:
                raise TimeoutError
            if not wanted:
                sleep(min(self.polling_interval, left_s))

    def close_connection(self, connection: Transport) -> None:
        """Close all channels and the client."""
        super().close_connection(connection)
        self.session.close()

    def _session(self) -> Session:
        info = self.client
        options = info.transport_options
        settings: dict[str, Any] = dict(options.get("client") or {})
        if info.userid:
            settings |= {"access_key": info.userid, "secret_key": info.password or ""}
        namespace = (info.virtual_host or "").strip("/")
        if namespace:
            settings["namespace"] = namespace
        for key, keyword in (("group", "group"), ("lease_ms", "lease_ms"), ("create_topics", "creates")):
            if key in options:
                settings[keyword] = options[key]
        namesrv = options.get("namesrv") or f"{info.hostname or '127.0.0.1'}:{info.port or self.default_port}"
        return Session(namesrv, **settings)


def timer_of(message: dict[str, Any]) -> dict[str, str]:
    """When a task of Celery that has an eta is delivered: then, or as late as brokers allow, and the worker
    holds it for the rest."""
    eta = (message.get("headers") or {}).get("eta")
    try:
        at = datetime.fromisoformat(eta) if isinstance(eta, str) else None
    except ValueError:
        return {}
    if at is None or at.tzinfo is None:
        return {}
    left_s = (at - datetime.now(at.tzinfo)).total_seconds()
    if left_s <= 0:
        return {}
    if left_s > _FARTHEST_S:
        return {props.TIMER_DELAY_MS: str(_FARTHEST_S * 1000)}
    return {props.TIMER_DELIVER_MS: str(round(at.timestamp() * 1000))}


__all__ = ["Channel", "Transport"]
