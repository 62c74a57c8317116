"""Reading of records as undecoded bytes, for programs that decode many at once, such as the Spark connector.

`rmqkit.protocol.record` shows the layout of a record. Nothing is decompressed or unfolded, no hook is called,
and brokers compare only the hashes of tags (Java: PullMessageProcessor, QueryMessageProcessor; wire-protocol
sheet, sections 3.2 and 3.5).
"""

from __future__ import annotations

import anyio
from attrs import frozen

from rmqkit.client.answers import refusal
from rmqkit.client.consumer.pull_consumer import MAX_PULL_MESSAGES, PULL_TIMEOUT_MS
from rmqkit.client.consumer.pulling import PullStatus, check_expression, pull_answer
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimeout, RmqError
from rmqkit.model.names import group_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SUBSCRIBE_ALL
from rmqkit.model.sysflag import PULL_LITE, PULL_SUBSCRIPTION
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import PullMessageRequestHeader, QueryMessageRequestHeader

QUERY_TIMEOUT_MS = 18_000


@frozen
class RawPull:
    """The answer to a pull. Offsets are queue offsets.

    body  concatenated complete records, empty unless the status is FOUND
    """

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int


@frozen
class RawQuery:
    """One broker's answer to a query.

    body        concatenated complete records
    indexed_ms  the store time of the newest message in its index (ms since 1970), 0 when there is no index,
                None when it did not say
    """

    body: bytes
    indexed_ms: int | None


class RawReader:
    """Pulls and queries that return records as bytes; created by `Client.raw_reader`. Any number of them may
    be in progress at a time.

    The reader is not a member of its group: it sends no heartbeats and takes no part in dividing the queues.
    Brokers require that the group exists, or create it.
    """

    def __init__(self, instance: Instance, group: str) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a reader needs a legal group")
        self.group = group
        #: Offsets of single queues; `commit` takes the group.
        self.offsets = QueueOffsets(instance)
        self._instance = instance
        self._names = instance.names

    @in_namespace
    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str | None = None,
        max_messages: int = MAX_PULL_MESSAGES,
        sequential_bytes: int | None = None,
        timeout_ms: int = PULL_TIMEOUT_MS,
    ) -> RawPull:
        """The records from an offset on, as many as the broker returns, at most `max_messages`.

        expression        as in `PullConsumer.pull`
        sequential_bytes  the size of an answer that is welcome because the queue is read from end to end;
                          rmqkit's broker then ignores its limits of ordinary pulls, other brokers keep theirs

        Raises BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, NoRoute, BrokerUnknown, ClientError
        (unreadable header). After a connection failure the routes are refreshed. When cancelled, the answer
        is dropped.
        """
        instance = self._instance
        kind = check_expression(expression, expression_type)
        address = await instance.reader_address(queue)
        header = PullMessageRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=PULL_SUBSCRIPTION | PULL_LITE,
            subscription=expression,
            expression_type=kind,
            sequential_bytes=sequential_bytes,
        )
        try:
            response = await instance.pool.call(
                address, request(RequestCode.LITE_PULL_MESSAGE, header), timeout_ms
            )
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            instance.refresh_soon()
            raise
        status, said = pull_answer(response, queue, address)
        body = response.body if status is PullStatus.FOUND else b""
        return RawPull(status, body, said.next_begin_offset, said.min_offset, said.max_offset)

    @in_namespace
    async def query(
        self, topic: str, key: str, *, max_messages: int, begin_ms: int, end_ms: int
    ) -> dict[str, RawQuery]:
        """Broker name -> the newest records, at most `max_messages`, that its index lists under the key (or
        the producer's unique id) and that were stored within [begin, end] (ms since 1970). The index contains
        hashes, so records of other keys and topics may be included.

        All masters are queried concurrently, and all must answer. Raises as `pull`.
        """
        instance = self._instance
        route = await instance.routes.for_reading(topic)
        masters = {
            broker.broker_name: broker.master
            for broker in route.data.broker_datas
            if broker.master is not None
        }
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_messages, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        found: dict[str, RawQuery] = {}
        failures: list[RmqError] = []

        async def ask(name: str, address: str) -> None:
            try:
                response = await instance.pool.call(
                    address, request(RequestCode.QUERY_MESSAGE, header), QUERY_TIMEOUT_MS
                )
                if response.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
                    raise refusal(response, address, f"looking for {key!r}")
                indexed = response.fields().get("indexLastUpdateTimestamp", "")
            except RmqError as error:
                failures.append(error)
                return
            body = response.body if response.code == ResponseCode.SUCCESS else b""
            found[name] = RawQuery(body, int(indexed) if indexed.isdecimal() else None)

        async with anyio.create_task_group() as group:
            for name, address in masters.items():
                group.start_soon(ask, name, address)
        if failures:
            raise failures[0]
        return found
