"""Sends what is prepared: the attempts, the queue of each, and what they tell about brokers (behaviour sheet,
A6 and A7)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rmqkit.client.answers import refusal
from rmqkit.client.hooks import ClientSendContext
from rmqkit.client.instance import Instance
from rmqkit.client.producing.attempts import Attempts
from rmqkit.client.producing.in_flight import Bounds, InFlight
from rmqkit.client.producing.latency_faults import LatencyFaults
from rmqkit.client.producing.outgoing import Outgoing
from rmqkit.client.producing.queue_choice import RoundRobin, by_key
from rmqkit.client.producing.send_result import STATUS_OF_CODE, SendResult, SendStatus, send_result
from rmqkit.client.routing.routes import Route
from rmqkit.client.settings import ProducerOptions
from rmqkit.errors import (
    BrokerError,
    BrokerUnknown,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NoMaster,
    RequestTimeout,
)
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode

#: After these answers another broker is tried.
RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
_UNMEASURED = nullcontext()


class Sender:
    """Sends prepared messages and batches for one producer. Any number of tasks may use it.

    in_flight  the room for messages that are sent and not answered yet
    """

    def __init__(self, instance: Instance, group: str, options: ProducerOptions) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._round_robin = RoundRobin()
        self._faults = None if options.latency_faults is None else LatencyFaults(options.latency_faults)
        self.in_flight = InFlight(Bounds(options.max_in_flight, options.max_in_flight_bytes))

    def attempts(
        self,
        queue: MessageQueue | None,
        ordering_key: str | None,
        timeout_ms: int | None,
        deadline_s: float | None = None,
    ) -> Attempts:
        """The attempts of one send, whose time begins now or ends at the deadline."""
        budget_ms = self._options.timeout_ms if timeout_ms is None else timeout_ms
        most = 1 if queue is not None or ordering_key else 1 + self._options.retries
        return Attempts(
            budget_ms,
            most,
            self._instance.backend.current_time,
            patient=self._options.retries > 0,
            deadline_s=deadline_s,
        )

    async def send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        ordering_key: str | None,
        attempts: Attempts,
        context: ClientSendContext,
    ) -> SendResult:
        """Send when there is room in flight (`attempt_until_sent`)."""
        count, size_bytes = outgoing.count, len(outgoing.body)
        if not self.in_flight.take(count, size_bytes):
            await self.in_flight.take_later(count, size_bytes, attempts.deadline_s)
        try:
            return await self.attempt_until_sent(outgoing, queue, ordering_key, attempts, context)
        finally:
            self.in_flight.leave(count, size_bytes)

    async def attempt_until_sent(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        ordering_key: str | None,
        attempts: Attempts,
        context: ClientSendContext,
    ) -> SendResult:
        """Send to one broker after the other until one has stored it. Raises what `Producer.send` raises for
        a route or an answer."""
        kept: SendResult | None = None
        while True:
            try:
                route = self._instance.routes.writable(outgoing.topic) or await self.route(outgoing.topic)
            except NoMaster as error:
                attempts.no_master(error)
                if not attempts.goes_on:
                    break
                await attempts.pause((), self._instance.routes.changed)
                continue
            target, brokers = self.target(route, queue, ordering_key, attempts.failed)
            if not attempts.goes_on:
                break
            try:
                result = await self._attempt(outgoing, target, attempts.left_ms, context)
            except BrokerError as error:
                if error.code not in RETRY_CODES:
                    if kept is not None:
                        return kept
                    raise
                attempts.failure(target.broker_name, error)
                if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                    # A failover may have made another broker the master.
                    self._instance.refresh_soon()
            except (ConnectFailed, ConnectionLost, RequestTimeout, BrokerUnknown) as error:
                attempts.failure(target.broker_name, error)
                self._instance.refresh_soon()
            else:
                # Half messages are never sent twice: a transaction ends one of them.
                again = self._options.retry_when_not_stored_everywhere and not outgoing.is_half
                if result.status is SendStatus.SEND_OK or not again:
                    return result
                kept = result
                attempts.spent(target.broker_name)
            if not attempts.goes_on:
                break
            outgoing = outgoing.again()
            await attempts.pause(brokers, self._instance.routes.changed)
        if kept is not None:
            return kept
        raise attempts.error(outgoing.described, outgoing.topic)

    async def oneway(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        ordering_key: str | None,
        attempts: Attempts,
        context: ClientSendContext,
    ) -> None:
        """Hand a message to the connection when there is room in flight. Raises as `Producer.send_oneway`."""
        size_bytes = len(outgoing.body)
        if not self.in_flight.take(1, size_bytes):
            await self.in_flight.take_later(1, size_bytes, attempts.deadline_s)
        try:
            target, _ = self.target(await self.route(outgoing.topic), queue, ordering_key)
            address = self._tried(context, target)
            command = outgoing.command(
                self._group, target, self._options.default_topic_queues, self._instance.now_ms()
            )
            with self._measured(target.broker_name):
                await self._instance.pool.oneway(address, command, max(attempts.left_ms, 1))
        finally:
            self.in_flight.leave(1, size_bytes)

    async def _attempt(
        self, outgoing: Outgoing, queue: MessageQueue, timeout_ms: int, context: ClientSendContext
    ) -> SendResult:
        address = self._tried(context, queue)
        command = outgoing.command(
            self._group, queue, self._options.default_topic_queues, self._instance.now_ms()
        )
        with self._measured(queue.broker_name):
            response = await self._instance.pool.call(address, command, timeout_ms)
            status = STATUS_OF_CODE.get(response.code)
            if status is None:
                raise refusal(response, address, f"sending to {queue}")
        context.result = send_result(response, status, queue, ",".join(outgoing.unique_keys), address)
        return context.result

    async def route(self, topic: str) -> Route:
        """The route of a topic, with writable queues."""
        self._instance.check_usable()
        return await self._instance.routes.for_writing(topic, self._options.default_topic_queues)

    def target(
        self,
        route: Route,
        queue: MessageQueue | None,
        ordering_key: str | None,
        failed: AbstractSet[str] = frozenset(),
    ) -> tuple[MessageQueue, AbstractSet[str]]:
        """The queue of the next attempt, and the brokers from which it was chosen."""
        self._instance.check_usable()
        topic = route.topic
        if queue is not None and queue.topic != topic:
            raise ClientError(f"the message goes to topic {topic!r}, the queue belongs to {queue.topic!r}")
        if queue is None and ordering_key:
            queue = by_key(route.write_queues, ordering_key)
        if queue is not None:
            return queue, {queue.broker_name}
        if self._faults is None:
            return self._round_robin.choose(topic, route.write_queues, failed), route.write_brokers
        avoided = self._faults.avoided(self._instance.backend.current_time())
        queue = self._round_robin.choose(
            topic, route.write_queues, failed | avoided, failed | self._faults.unreachable
        )
        return queue, route.write_brokers

    def _measured(self, broker: str) -> AbstractContextManager[None]:
        """Record the latency or failure of a request to a broker; a cancelled one tells nothing about it."""
        return _UNMEASURED if self._faults is None else self._recorded(broker, self._faults)

    @contextmanager
    def _recorded(self, broker: str, faults: LatencyFaults) -> Iterator[None]:
        now_s = self._instance.backend.current_time
        began_s = now_s()
        try:
            yield
        except (BrokerError, ConnectFailed, ConnectionLost, RequestTimeout) as error:
            faults.failed(broker, now_s(), refused=isinstance(error, BrokerError))
            raise
        ended_s = now_s()
        faults.answered(broker, ended_s - began_s, ended_s)

    def _master(self, queue: MessageQueue) -> str:
        """The address of the queue's master. Raises BrokerUnknown; the next use fetches the route again."""
        address = self._instance.routes.master(queue.broker_name)
        if address is None:
            self._instance.routes.forget(queue.topic)
            raise BrokerUnknown(
                f"broker {queue.broker_name!r} has no master in the route of {queue.topic!r}; see `rmqkit"
                " topic route`"
            )
        return address

    def _tried(self, context: ClientSendContext, queue: MessageQueue) -> str:
        """The address for one attempt. Raises BrokerUnknown, and the error of a hook that forbids the
        attempt."""
        address = self._master(queue)
        context.tried(queue, address, context.attempts + 1)
        self._instance.hooks.check(context, queue, address)
        return address
