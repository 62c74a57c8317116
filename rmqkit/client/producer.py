"""The producer (Java: DefaultMQProducer, DefaultMQProducerImpl; behaviour sheet, A4 to A12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

import anyio

from rmqkit.client.answers import refusal
from rmqkit.client.hooks import ClientSendContext, Mode
from rmqkit.client.instance import Instance
from rmqkit.client.outgoing import Outgoing, PackedBatch, as_message, prepare, prepare_batch, prepare_packed
from rmqkit.client.queue_choice import RoundRobin, by_key
from rmqkit.client.send_result import STATUS_OF_CODE, SendResult, SendStatus, send_result
from rmqkit.client.settings import ProducerOptions
from rmqkit.errors import BrokerError, BrokerUnknown, ClientError, ConnectFailed, ConnectionLost, RequestTimeout, RmqError, SendFailed
from rmqkit.model.message import Message
from rmqkit.model.names import group_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode

#: Answers after which another broker is tried.
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
DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"


class Producer:
    """Sends messages; made by `Client.producer`. Any number of tasks may send at the same time.

    A send that fails after an attempt whose outcome is unknown (time-out, lost connection) may have stored the message, and a retry may store
    it twice: consumers must bear that, as with every RocketMQ producer.
    """

    def __init__(self, instance: Instance, group: str, options: ProducerOptions) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a producer needs a legal group")
        if group == DEFAULT_PRODUCER_GROUP:
            raise ClientError(f"{DEFAULT_PRODUCER_GROUP} is reserved; name the group after your application")
        self.group = group
        self.options = options
        self._instance = instance
        self._round_robin = RoundRobin()
        self._open = False

    async def __aenter__(self) -> Producer:
        self._instance.join_producer(self.group)
        self._open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open = False
        await self._instance.leave(producer=self.group)

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        delay_level: int | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it: a `Message`, or a topic and a body with what belongs to them.

        With `ordering_key` or `queue` exactly one attempt is made, so that order is kept; otherwise a failed broker is avoided by the next
        attempt. Raises MessageIllegal and ClientError (the message is wrong; nothing was sent), NoRoute, NameServersUnreachable, BrokerError (an
        answer no retry can help) and SendFailed (all attempts failed; the text lists them, `code` is the last broker's). Cancelled: the message
        may have been stored.
        """
        given = as_message(message, body, tag, keys, properties, ordering_key, delay_level)
        self._check_open()
        with self._instance.hooks.sending(self.group, Mode.SYNC, [given], queue) as context:
            outgoing = await self._prepare(context)
            return await self._send(outgoing, queue, given.ordering_key, timeout_ms, context)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic with one request; the broker stores all or none, in order, in one queue.

        Raises like `send`, and ClientError when the messages cannot share a batch (`outgoing.prepare_batch` says what must agree).
        """
        self._check_open()
        if not messages:
            raise ClientError("a batch holds at least one message")
        with self._instance.hooks.sending(self.group, Mode.SYNC, messages, queue) as context:
            outgoing = prepare_batch(context.messages, self._new_key, max_message_bytes=self.options.max_message_bytes)
            context.message_ids = outgoing.unique_keys
            return await self._send(outgoing, queue, messages[0].ordering_key, timeout_ms, context)

    async def send_packed(self, packed: PackedBatch, *, queue: MessageQueue | None = None, timeout_ms: int | None = None) -> SendResult:
        """Send a batch that is encoded already, as `send_batch` does; the result has no `message_id`.

        Hooks around sends get to see messages, so with one of them the batch is taken apart and goes the long way. Raises like `send_batch`.
        """
        if self._instance.hooks.see_sends:
            return await self.send_batch(packed.messages(), queue=queue, timeout_ms=timeout_ms)
        self._check_open()
        outgoing = prepare_packed(packed, max_message_bytes=self.options.max_message_bytes)
        with self._instance.hooks.sending(self.group, Mode.SYNC, [], queue) as context:
            return await self._send(outgoing, queue, None, timeout_ms, context)

    async def send_oneway(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        delay_level: int | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> str:
        """Hand a message to the connection and do not wait for an answer; returns its message id. Never retried, may be lost.

        Raises what `send` raises for a wrong message or an unknown route, ConnectFailed, ConnectionLost, RequestTimeout.
        """
        given = as_message(message, body, tag, keys, properties, ordering_key, delay_level)
        self._check_open()
        with self._instance.hooks.sending(self.group, Mode.ONEWAY, [given], queue) as context:
            outgoing = await self._prepare(context)
            target = await self._target(outgoing, queue, given.ordering_key, None)
            address = self._tried(context, target)
            command = outgoing.command(self.group, target, self.options.default_topic_queues, self._instance.now_ms())
            await self._instance.pool.oneway(address, command, self.options.timeout_ms if timeout_ms is None else timeout_ms)
            return outgoing.unique_keys[0]

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues a send to the topic may go to (Java: fetchPublishMessageQueues). Raises NoRoute, NameServersUnreachable."""
        self._check_open()
        return list((await self._instance.routes.for_writing(topic, self.options.default_topic_queues)).write_queues)

    # --- the attempts --------------------------------------------------------------------------------------------------

    async def _send(
        self, outgoing: Outgoing, queue: MessageQueue | None, ordering_key: str | None, timeout_ms: int | None, context: ClientSendContext
    ) -> SendResult:
        budget_ms = self.options.timeout_ms if timeout_ms is None else timeout_ms
        began_s = anyio.current_time()
        attempts = 1 if queue is not None or ordering_key else 1 + self.options.retries
        failures: list[str] = []
        last: RmqError | None = None
        kept: SendResult | None = None
        avoid: str | None = None
        for _ in range(attempts):
            target = await self._target(outgoing, queue, ordering_key, avoid)
            left_ms = budget_ms - int((anyio.current_time() - began_s) * 1000)
            if left_ms <= 0:
                failures.append(f"the {budget_ms} ms for the send are used up")
                break
            try:
                result = await self._attempt(outgoing, target, left_ms, context)
            except BrokerError as error:
                if error.code not in RETRY_CODES:
                    if kept is not None:
                        return kept
                    raise
                last = error
            except (ConnectFailed, ConnectionLost, RequestTimeout, BrokerUnknown) as error:
                last = error
                self._instance.refresh_soon()
            else:
                if result.status is SendStatus.SEND_OK or not self.options.retry_when_not_stored_everywhere:
                    return result
                kept, avoid = result, target.broker_name
                continue
            failures.append(f"{target.broker_name}: {last}")
            avoid = target.broker_name
        if kept is not None:
            return kept
        raise _all_failed(outgoing, failures, last)

    async def _attempt(self, outgoing: Outgoing, queue: MessageQueue, timeout_ms: int, context: ClientSendContext) -> SendResult:
        address = self._tried(context, queue)
        command = outgoing.command(self.group, queue, self.options.default_topic_queues, self._instance.now_ms())
        response = await self._instance.pool.call(address, command, timeout_ms)
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            raise refusal(response, address, f"sending to {queue}")
        context.result = send_result(response, status, queue, ",".join(outgoing.unique_keys), address)
        return context.result

    async def _target(self, outgoing: Outgoing, queue: MessageQueue | None, ordering_key: str | None, avoid: str | None) -> MessageQueue:
        """The queue of the next attempt."""
        if queue is not None and queue.topic != outgoing.topic:
            raise ClientError(f"the message goes to topic {outgoing.topic!r}, the queue belongs to {queue.topic!r}")
        route = await self._instance.routes.for_writing(outgoing.topic, self.options.default_topic_queues)
        if queue is not None:
            return queue
        if ordering_key:
            return by_key(route.write_queues, ordering_key)
        return self._round_robin.choose(outgoing.topic, route.write_queues, avoid)

    def _master(self, queue: MessageQueue) -> str:
        """Where to send. Raises BrokerUnknown, and then the route is asked for again by the next use."""
        address = self._instance.routes.master(queue.broker_name)
        if address is None:
            self._instance.routes.forget(queue.topic)
            raise BrokerUnknown(f"broker {queue.broker_name!r} has no master in the route of {queue.topic!r}; see `rmqkit topic route`")
        return address

    def _tried(self, context: ClientSendContext, queue: MessageQueue) -> str:
        """The address for one attempt. Raises BrokerUnknown, and what a hook raises that forbids it."""
        context.queue, context.attempts = queue, context.attempts + 1
        context.address = self._master(queue)
        self._instance.hooks.check(context, queue, context.address)
        return context.address

    async def _prepare(self, context: ClientSendContext) -> Outgoing:
        options = self.options
        outgoing = await prepare(
            context.messages[0],
            self._new_key,
            max_message_bytes=options.max_message_bytes,
            compress_over_bytes=options.compress_over_bytes,
            compress_level=options.compress_level,
        )
        context.message_ids = outgoing.unique_keys
        return outgoing

    def _new_key(self) -> str:
        return self._instance.unique_keys.make(self._instance.now_ms())

    def _check_open(self) -> None:
        if not self._open:
            raise ClientError(f"producer {self.group!r} is not open; send inside `async with client.producer(...)`")
        self._instance.check_process()


def _all_failed(outgoing: Outgoing, failures: list[str], last: RmqError | None) -> SendFailed:
    listed = "; ".join(f"attempt {number}: {failure}" for number, failure in enumerate(failures, 1))
    error = SendFailed(f"sending {outgoing.described} to {outgoing.topic!r} failed. {listed}")
    if last is not None:
        error.code = last.code
    error.__cause__ = last
    return error
