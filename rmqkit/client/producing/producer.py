"""The producer (Java: DefaultMQProducer, DefaultMQProducerImpl; behaviour sheet, A4 to A12)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, Unpack, cast

from rmqkit.client.codecs import Body, Codec
from rmqkit.client.hooks import ClientSendContext, Mode
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.client.producing.accumulator import Accumulator, Entry, GatheringKey
from rmqkit.client.producing.checks import Checks
from rmqkit.client.producing.outgoing import (
    Outgoing,
    PackedBatch,
    batch_item,
    batch_of,
    compressed,
    fits_batches,
    prepare,
    prepare_batch,
    prepare_half,
    prepare_packed,
)
from rmqkit.client.producing.recalls import recall
from rmqkit.client.producing.send_options import SendKeywords, SendOptions
from rmqkit.client.producing.send_result import SendResult, results_of_batch
from rmqkit.client.producing.sender import Sender
from rmqkit.client.producing.transaction_state import Check
from rmqkit.client.producing.transactions import Transaction, half_of
from rmqkit.client.settings import ProducerOptions
from rmqkit.errors import BrokerError, ClientError, RmqError
from rmqkit.model.message import Message
from rmqkit.model.names import group_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.compressed_body import compression

log = logging.getLogger(__name__)

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"


class Producer(Generic[Body]):
    """Sends messages; created by `Client.producer`. Any number of tasks may send at the same time.

    A send that fails after an attempt with an unknown outcome (time-out, lost connection) may have stored the
    message, and a retry may store it twice. Consumers must tolerate duplicates, as with every RocketMQ
    producer.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        options: ProducerOptions,
        *,
        check: Check | None = None,
        codec: Codec[Body] | None = None,
        member: bool = True,
    ) -> None:
        """`member` is False for a producer that sends for the client itself: heartbeats do not name it."""
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a producer needs a legal group")
        if group == DEFAULT_PRODUCER_GROUP:
            raise ClientError(f"{DEFAULT_PRODUCER_GROUP} is reserved; name the group after your application")
        self.group = group
        self.options = options
        self.codec = codec
        self._compression = compression(options.compression, options.compress_level)
        self._instance = instance
        self._names = instance.names
        self._now_ms, self._make_key = instance.now_ms, instance.unique_keys.make
        self._member = member
        self._sender = Sender(instance, group, options)
        self._checks = Checks(instance, group, check, codec)
        self._batch_bytes = min(options.batch_bytes, options.max_message_bytes)
        self._accumulator = (
            None
            if options.linger_ms is None
            else Accumulator(
                options.linger_ms / 1000,
                self._batch_bytes,
                self._deliver,
                instance.backend.wakeup,
                instance.backend.wake,
                self.start_soon,
            )
        )
        self._open = False

    async def start(self) -> Self:
        """Join the group, so that heartbeats contain it, and return the producer; `aclose` leaves the group.
        `async with` calls both.

        Raises ClientError when this client already has a producer of the group.
        """
        self._instance.check_usable()
        if self._member:
            answers = self._checks.answer if self._checks.check is not None else None
            self._instance.join_producer(self.group, answers)
        self._open = True
        return self

    async def aclose(self) -> None:
        """Send what is gathered, wait for the sends of other tasks, each within its time-out, leave the group
        and unregister it from the brokers, within the time limit of one call. May be called twice. When
        cancelled, brokers notice it later."""
        was_open, self._open = self._open, False
        if not was_open:
            return
        if self._accumulator is not None:
            self._accumulator.close()
        await self._sender.in_flight.idle()
        if self._member:
            await self._instance.leave(producer=self.group)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @in_namespace
    async def send(
        self, message: Message | str, body: Body | None = None, **keywords: Unpack[SendKeywords]
    ) -> SendResult:
        """Send one message, given as a `Message` or as a topic, a body and optional parts, and wait until the
        broker has stored it. With a codec the body is a value, and that of a `Message` stays bytes. The
        keywords are those of `SendOptions`: `tag`, `keys`, `properties`, `ordering_key`, `delay_level`,
        `priority`, `queue` and `timeout_ms`.

        With `ordering_key` or `queue` exactly one attempt is made, to keep the order. Otherwise the next
        attempt avoids the failed broker. A refused connection sent nothing and does not count as an attempt:
        connecting is repeated with growing pauses until the time-out, so that a send survives the restart of
        a broker within that time. With `retries` = 0 the first failure of any kind ends the send.

        With `linger_ms` the sends of concurrent tasks are gathered. Each has its own result; a batch that the
        broker refuses is sent again message by message, so that a refusal concerns one message. Messages with
        a delay, to retry topics, of transactions, and those that are compressed or larger than a batch, are
        sent by themselves; so are all messages while a CheckForbiddenHook is installed.

        While `max_in_flight` messages are unanswered, the send waits.

        Raises TypeError (a value of a wrong type), MessageIllegal and ClientError (the message is wrong;
        nothing was sent), NoRoute, NameServersUnreachable, BrokerError (an answer that a retry cannot change)
        and SendFailed (all attempts failed; the text lists them, `code` is the last broker's; or there was no
        room in flight in time). When cancelled, the message may have been stored, also if it was gathered and
        its batch had departed.
        """
        options = SendOptions(**keywords)
        given = options.message(message, body, self.codec)
        queue, timeout_ms = options.queue, options.timeout_ms
        self._check_open()
        hooks, accumulator = self._instance.hooks, self._accumulator
        if accumulator is not None and not hooks.see_sends and self._gathers(given):
            return await self._send_gathered(accumulator, given, None, queue, timeout_ms)
        with hooks.sending(self.group, Mode.SYNC, [given], queue) as context:
            if accumulator is not None and self._gathers(context.messages[0]):
                message = context.messages[0]
                return await self._send_gathered(accumulator, message, context, queue, timeout_ms)
            outgoing = self._prepare(context.messages[0])
            if len(outgoing.body) >= self.options.compress_over_bytes:
                outgoing = await self._compressed(outgoing)
            context.message_ids = outgoing.unique_keys
            attempts = self._sender.attempts(queue, given.ordering_key, timeout_ms)
            return await self._sender.send(outgoing, queue, given.ordering_key, attempts, context)

    @in_namespace
    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic in one request. The broker stores all or none of them, in order, in one
        queue.

        Raises like `send`, and ClientError when the messages cannot form a batch (see
        `outgoing.prepare_batch`).
        """
        self._check_open()
        if not messages:
            raise ClientError("a batch holds at least one message")
        with self._instance.hooks.sending(self.group, Mode.SYNC, list(messages), queue) as context:
            outgoing = prepare_batch(
                context.messages, self._new_key, max_message_bytes=self.options.max_message_bytes
            )
            context.message_ids = outgoing.unique_keys
            ordering_key = messages[0].ordering_key
            attempts = self._sender.attempts(queue, ordering_key, timeout_ms)
            return await self._sender.send(outgoing, queue, ordering_key, attempts, context)

    @in_namespace
    async def send_packed(
        self, packed: PackedBatch, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a batch that is already encoded, as `send_batch` does; the result has no `message_id`.

        Send hooks expect messages, so if there are any, the batch is decoded and sent with `send_batch`.
        Raises like `send_batch`.
        """
        if self._instance.hooks.see_sends:
            return await self.send_batch(packed.messages(), queue=queue, timeout_ms=timeout_ms)
        self._check_open()
        outgoing = prepare_packed(packed, max_message_bytes=self.options.max_message_bytes)
        with self._instance.hooks.sending(self.group, Mode.SYNC, [], queue) as context:
            attempts = self._sender.attempts(queue, packed.ordering_key, timeout_ms)
            return await self._sender.send(outgoing, queue, packed.ordering_key, attempts, context)

    @in_namespace
    async def send_oneway(
        self, message: Message | str, body: Body | None = None, **keywords: Unpack[SendKeywords]
    ) -> str:
        """Hand a message to the connection without waiting for an answer; returns its message id. The send is
        never retried and the message may be lost. Takes the arguments of `send`.

        Raises what `send` raises for a wrong message or an unknown route, and ConnectFailed, ConnectionLost,
        RequestTimeout.
        """
        options = SendOptions(**keywords)
        given = options.message(message, body, self.codec)
        queue, timeout_ms = options.queue, options.timeout_ms
        self._check_open()
        with self._instance.hooks.sending(self.group, Mode.ONEWAY, [given], queue) as context:
            outgoing = self._prepare(context.messages[0])
            if len(outgoing.body) >= self.options.compress_over_bytes:
                outgoing = await self._compressed(outgoing)
            context.message_ids = outgoing.unique_keys
            attempts = self._sender.attempts(queue, given.ordering_key, timeout_ms)
            await self._sender.oneway(outgoing, queue, given.ordering_key, attempts, context)
            return outgoing.unique_keys[0]

    @in_namespace
    async def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Take a message back that waits for its time of delivery: it will not be delivered, and a message
        that repeats not any more. Returns its id. The broker does not look whether there is such a message.

        handle  `recall_handle` of the result of its send

        Raises ClientError for what is not a handle, NoRoute, BrokerUnknown, and BrokerError:
        ILLEGAL_OPERATION when the time has come, or for the handle of a message to another topic or broker,
        NO_PERMISSION when the broker allows no recalls (`recallMessageEnable`). When cancelled, the message
        may be recalled."""
        self._check_open()
        budget_ms = self.options.timeout_ms if timeout_ms is None else timeout_ms
        return await recall(self._instance, self.group, topic, handle, budget_ms)

    @in_namespace
    def transaction(
        self,
        message: Message | str,
        body: Body | None = None,
        *,
        check: Check | None = None,
        **keywords: Unpack[SendKeywords],
    ) -> Transaction:
        """A message that consumers get if the block ends, and only then; to be used with `async with`, see
        `Transaction`. Takes the arguments of `send`, but for `delay_level`.

        check  tells the outcome of this transaction when a broker asks for it, as long as this producer is
               open. The default is the check of the producer (`Client.producer`), which also answers for what
               earlier processes have begun. Every producer of the group is asked: use the group for
               transactions alone, or give all of them a check

        Entering the block raises as `send`, and SendFailed when the half message is stored, but not as safely
        as the broker's settings require. Each attempt has a message id of its own, so that a message is never
        delivered twice because of a retry. When entering is cancelled, nobody gets the message.

        Raises ClientError without a check, and for a message with a delay or to a retry topic.
        """
        options = SendOptions(**keywords)
        given = options.message(message, body, self.codec)
        if check is None and self._checks.check is None:
            raise ClientError(
                "a transaction needs a check, which tells brokers how it ended when this process could not:"
                f" client.producer({self.group!r}, check=...), or producer.transaction(..., check=...), which"
                " is forgotten when the process ends"
            )
        send = partial(self._send_half, queue=options.queue, timeout_ms=options.timeout_ms)
        half = half_of(given, self.group)
        return Transaction(self._instance, self.group, self._checks, half, check, send)

    async def _send_half(
        self, half: Message, new_key: Callable[[], str], *, queue: MessageQueue | None, timeout_ms: int | None
    ) -> SendResult:
        self._check_open()
        self._instance.answer_checks(self.group, self._checks.answer)
        with self._instance.hooks.sending(self.group, Mode.SYNC, [half], queue) as context:
            limit = self.options.max_message_bytes
            outgoing: Outgoing = prepare_half(context.messages[0], new_key, max_message_bytes=limit)
            if len(outgoing.body) >= self.options.compress_over_bytes:
                outgoing = await self._compressed(outgoing)
            context.message_ids = outgoing.unique_keys
            attempts = self._sender.attempts(queue, half.ordering_key, timeout_ms)
            sent = await self._sender.send(outgoing, queue, half.ordering_key, attempts, context)
            context.message_ids = (sent.message_id,)
            return sent

    @in_namespace
    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues to which messages of the topic may be sent (Java: fetchPublishMessageQueues). Raises
        NoRoute, NameServersUnreachable."""
        self._check_open()
        return list((await self._sender.route(topic)).write_queues)

    def start_soon(self, function: Callable[[Any], Awaitable[None]], argument: object) -> None:
        """Run a function of the producer's own parts in the client's task group."""
        self._instance.group.start_soon(cast(Callable[[Any], Coroutine[Any, Any, None]], function), argument)

    # --- gathered sends -------------------------------------------------------------------------------------

    def _gathers(self, message: Message) -> bool:
        """Whether a message may travel in a batch with others."""
        return (
            len(message.body) < self.options.compress_over_bytes
            and fits_batches(message)
            and not self._instance.hooks.forbidding.entries
        )

    async def _send_gathered(
        self,
        accumulator: Accumulator,
        message: Message,
        context: ClientSendContext | None,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> SendResult:
        """Send one message in a batch with those of other tasks."""
        key, item = batch_item(message, self._new_key, max_message_bytes=self.options.max_message_bytes)
        if context is not None:
            context.message_ids = (key,)
        if queue is not None or message.ordering_key:
            queue, _ = self._sender.target(
                await self._sender.route(message.topic), queue, message.ordering_key
            )
        size_bytes = item.size_bytes
        entry = Entry(message, key, item, size_bytes, context, self._instance.backend.wakeup())
        budget_ms = self.options.timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = self._instance.backend.current_time() + budget_ms / 1000
        where = message.topic, queue, message.wait_store, budget_ms
        if not self._sender.in_flight.take(1, size_bytes):
            await self._sender.in_flight.take_later(1, size_bytes, deadline_s)
        try:
            if size_bytes > self._batch_bytes:
                await self._deliver([entry], where, deadline_s)
            else:
                gathering = accumulator.add(entry, where, deadline_s)
                try:
                    await entry.done
                except BaseException:
                    accumulator.withdraw(entry, gathering)
                    raise
        finally:
            self._sender.in_flight.leave(1, size_bytes)
        if isinstance(entry.outcome, SendResult):
            return entry.outcome
        raise entry.outcome or ClientError(
            "the client was closed while the message was being sent; a broker may have stored it"
        )

    async def _deliver(self, entries: Sequence[Entry], key: GatheringKey, deadline_s: float) -> None:
        """Send a batch, see `accumulator.Deliver`. A batch that a broker refuses is not stored, so its
        messages are sent one by one."""
        topic, queue, wait_store, timeout_ms = key
        if len(entries) > 1:
            outgoing = batch_of(
                topic,
                wait_store,
                [entry.unique_key for entry in entries],
                [entry.item for entry in entries],
                max_message_bytes=self.options.max_message_bytes,
            )
            context = self._instance.hooks.unseen(self.group, [entry.message for entry in entries])
            try:
                attempts = self._sender.attempts(queue, None, timeout_ms, deadline_s)
                whole = await self._sender.attempt_until_sent(outgoing, queue, None, attempts, context)
            except BrokerError as error:
                log.info("a batch of %d messages is sent message by message: %s", len(entries), error)
            else:
                results = results_of_batch(whole, outgoing.unique_keys)
                for entry, result in zip(entries, results, strict=True):
                    entry.outcome = result
                    if entry.context is not None:
                        entry.context.result = result
                return
            finally:
                for entry in entries:
                    if entry.context is not None:
                        entry.context.tried(context.queue, context.address, context.attempts)
        for entry in entries:
            try:
                outgoing = self._prepare(entry.message, entry.unique_key)
                attempts = self._sender.attempts(queue, None, timeout_ms, deadline_s)
                context = entry.context or self._instance.hooks.unseen(self.group, [entry.message])
                entry.outcome = await self._sender.attempt_until_sent(
                    outgoing, queue, None, attempts, context
                )
            except RmqError as error:
                if len(entries) == 1:
                    raise
                entry.outcome = error

    # --- preparation ----------------------------------------------------------------------------------------

    def _prepare(self, message: Message, unique_key: str | None = None) -> Outgoing:
        return prepare(
            message,
            self._new_key if unique_key is None else lambda: unique_key,
            max_message_bytes=self.options.max_message_bytes,
        )

    async def _compressed(self, outgoing: Outgoing) -> Outgoing:
        return await compressed(outgoing, self._compression, self.options.compress_level)

    def _new_key(self) -> str:
        return self._make_key(self._now_ms())

    def _check_open(self) -> None:
        if not self._open:
            raise ClientError(
                f"producer {self.group!r} is not open; use it inside `async with client.producer(...)`"
            )
        self._instance.check_usable()
