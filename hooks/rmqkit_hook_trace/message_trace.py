"""RocketMQ's message trace: records of a client's sends and deliveries, sent to a topic from which the
console and mqadmin read them (Java: AsyncTraceDispatcher; behaviour sheet, A15).

The topic must exist (`traceTopicEnable` on the broker) or be created by its first message. A full queue drops
records; tracing never blocks the client.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.hooks import (
    ClientConsumeContext,
    ClientConsumeHook,
    ClientSendContext,
    ClientSendHook,
    EndTransactionContext,
    EndTransactionHook,
    HookedClient,
    HookProducer,
)
from rmqkit.client.instance import wall_clock_ms
from rmqkit.client.producing.send_result import SendResult
from rmqkit.client.producing.transaction_state import TransactionState
from rmqkit.errors import RmqError
from rmqkit.model.message import Message
from rmqkit.model.names import TRACE_TOPIC
from rmqkit.protocol.message_id import UniqueKeys
from rmqkit_hook_trace import records
from rmqkit_hook_trace.records import TraceRecord

_log = logging.getLogger(__name__)
#: Maximum number of queued contexts (sends and deliveries); further ones are dropped.
QUEUE_CONTEXTS = 2_048
#: Maximum number of contexts in one trace message, which is sent when that many are queued or after the
#: interval.
BATCH_CONTEXTS = 10
INTERVAL_MS = 5_000
SEND_TIMEOUT_MS = 5_000
MAX_BODY_BYTES = 128_000
#: Maximum size of the property KEYS, so that the properties of a trace message fit whatever a batch contains.
MAX_KEYS_BYTES = 16_384
_numbers = count(1)
_JAVA_STATES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class MessageTrace(ClientSendHook, ClientConsumeHook, EndTransactionHook):
    """Collects records of one client and sends them with its own producer. Messages of the trace topic itself
    are not traced, nor messages whose broker has disabled tracing.

    topic    topic of the records
    now_ms   the clock
    dropped  number of contexts that did not fit into the queue or could not be sent
    """

    def __init__(self, topic: str = TRACE_TOPIC, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.topic = topic
        self.dropped = 0
        self._now_ms = now_ms
        self._queue: deque[list[TraceRecord]] = deque()
        self._enough = anyio.Event()
        self._keys = UniqueKeys(b"\x7f\x00\x00\x01")
        self._stack = AsyncExitStack()
        self._producer: HookProducer | None = None

    async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
        self._keys = UniqueKeys(client.settings.packed_ip)
        producer = client.producer(
            f"_INNER_TRACE_PRODUCER-rmqkit-{next(_numbers)}", timeout_ms=SEND_TIMEOUT_MS
        )
        self._producer = await self._stack.enter_async_context(producer)
        tasks.start_soon(self._run)

    async def close(self) -> None:
        """Send the queued records."""
        while self._queue:
            await self._send_some()
        await self._stack.aclose()

    # Hook methods.

    def before_send(self, context: ClientSendContext) -> None:
        context.notes[self] = self._now_ms()

    def after_send(self, context: ClientSendContext) -> None:
        result = context.result
        if result is None or result.region_id is None or context.topic.startswith(self.topic):
            return
        if result.trace_on:
            self._add(list(self._sent(context, result, result.region_id)))

    def before_consume(self, context: ClientConsumeContext) -> None:
        if context.queue.topic.startswith(self.topic):
            return
        began_ms = self._now_ms()
        request_id = self._keys.make(began_ms)
        context.notes[self] = began_ms, request_id
        record = partial(records.sub_before, began_ms=began_ms, group=context.group, request_id=request_id)
        self._add([record(message) for message in context.messages if records.is_traced(message)])

    def after_consume(self, context: ClientConsumeContext) -> None:
        noted = context.notes.get(self)
        if noted is None:
            return
        began_ms, request_id = noted
        ended_ms, group, result = self._now_ms(), context.group, context.result
        cost_ms = (ended_ms - began_ms) // len(context.messages)
        record = partial(records.sub_after, ended_ms=ended_ms, group=group, cost_ms=cost_ms, result=result)
        traced = [message for message in context.messages if records.is_traced(message)]
        self._add([record(message, request_id=request_id) for message in traced])

    def end_transaction(self, context: EndTransactionContext) -> None:
        message = context.message
        if isinstance(message, ReceivedMessage) and not records.is_traced(message):
            return
        record = records.end_transaction(
            message,
            ended_ms=self._now_ms(),
            group=context.group,
            message_id=context.message_id,
            transaction_id=context.transaction_id,
            store_host=context.address,
            state=_JAVA_STATES[context.state],
            from_check=context.from_check,
        )
        self._add([record])

    def _sent(self, context: ClientSendContext, result: SendResult, region: str) -> Iterator[TraceRecord]:
        """One record for each message, also of a batch, for which Java writes only one that cannot be found
        by a message's id."""
        began_ms: int = context.notes[self]
        cost_ms = self._now_ms() - began_ms
        offset_ids = result.offset_message_id.split(",")
        for at, (message, message_id) in enumerate(zip(context.messages, context.message_ids, strict=True)):
            yield records.pub(
                message,
                sent_ms=began_ms,
                region=region,
                group=context.group,
                message_id=message_id,
                store_host=context.address or "",
                cost_ms=cost_ms,
                kind=context.message_type,
                offset_message_id=offset_ids[at] if at < len(offset_ids) else "",
                success=result.is_ok,
            )

    def _add(self, found: list[TraceRecord]) -> None:
        if not found:
            return
        if len(self._queue) >= QUEUE_CONTEXTS:
            self.dropped += 1
            return
        self._queue.append(found)
        if len(self._queue) >= BATCH_CONTEXTS:
            self._enough.set()

    # Sending.

    async def _run(self) -> None:
        while True:
            with anyio.move_on_after(INTERVAL_MS / 1000):
                await self._enough.wait()
            self._enough = anyio.Event()
            await self._send_some()
            while len(self._queue) >= BATCH_CONTEXTS:
                await self._send_some()

    async def _send_some(self) -> None:
        """Send the oldest contexts; those that cannot be sent are dropped."""
        if self._producer is None or not self._queue:
            return
        contexts = [self._queue.popleft() for _ in range(min(BATCH_CONTEXTS, len(self._queue)))]
        for message in trace_messages(self.topic, [record for context in contexts for record in context]):
            try:
                await self._producer.send(message)
            except RmqError as error:
                self.dropped += len(contexts)
                _log.warning("%s records of the message trace are lost: %s", len(contexts), error)
                return


def trace_messages(topic: str, found: Iterable[TraceRecord]) -> Iterator[Message]:
    """The records as messages: those of one region together, as many as fit."""
    regions: dict[str, list[TraceRecord]] = {}
    for record in found:
        regions.setdefault(record.region, []).append(record)
    for of_region in regions.values():
        texts: list[str] = []
        keys: dict[str, None] = {}
        body_bytes = keys_bytes = 0
        for record in of_region:
            size, keys_size = len(record.text.encode()), sum(len(key.encode()) + 1 for key in record.keys)
            if texts and (body_bytes + size > MAX_BODY_BYTES or keys_bytes + keys_size > MAX_KEYS_BYTES):
                yield Message(topic, "".join(texts).encode(), keys=tuple(keys))
                texts, keys, body_bytes, keys_bytes = [], {}, 0, 0
            texts.append(record.text)
            keys |= dict.fromkeys(record.keys)
            body_bytes += size
            keys_bytes += keys_size
        yield Message(topic, "".join(texts).encode(), keys=tuple(keys))
