"""Reading records as brokers store them, undecoded: for programs that decode many at once, such as the Spark connector.

The layout of a record is drawn in `rmqkit.protocol.record`. Nothing is decompressed or unfolded, no hook is told, and of tags brokers compare only the
hashes (Java: PullMessageProcessor, QueryMessageProcessor; wire-protocol sheet, sections 3.2 and 3.5).
"""

from __future__ import annotations

import anyio
from attrs import frozen

from rmqkit.client.answers import refusal
from rmqkit.client.instance import Instance
from rmqkit.client.pull_consumer import MAX_PULL_MESSAGES, PULL_TIMEOUT_MS
from rmqkit.client.pulling import PullStatus, pull_answer
from rmqkit.client.queue_offsets import QueueOffsets
from rmqkit.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimeout, RmqError
from rmqkit.model.names import group_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SUBSCRIBE_ALL, TAG
from rmqkit.model.sysflag import PULL_LITE, PULL_SUBSCRIPTION
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import PullMessageRequestHeader, QueryMessageRequestHeader

QUERY_TIMEOUT_MS = 18_000


@frozen
class RawPull:
    """The answer to a pull. Offsets are queue offsets.

    body  whole records one behind the other, empty unless the status is FOUND
    """

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int


@frozen
class RawQuery:
    """One broker's answer to a look-up.

    body        whole records one behind the other
    indexed_ms  the store time of the newest message in its index (ms since 1970), 0 when there is no index, None when it did not say
    """

    body: bytes
    indexed_ms: int | None


class RawReader:
    """Pulls and look-ups whose records stay bytes; made by `Client.raw_reader`. Any number of them may be under way at a time.

    It is no member of its group: no heartbeat is sent, nobody shares queues with it. Brokers want the group to exist, or make it.
    """

    def __init__(self, instance: Instance, group: str) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a reader needs a legal group")
        self.group = group
        #: Questions about single queues; `commit` takes the group.
        self.offsets = QueueOffsets(instance)
        self._instance = instance

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = TAG,
        max_messages: int = MAX_PULL_MESSAGES,
        timeout_ms: int = PULL_TIMEOUT_MS,
    ) -> RawPull:
        """The records from an offset on, as many as the broker gives, at most `max_messages`.

        expression  `*`, tags joined by `||`, or with expression_type="SQL92" a condition over properties
        Raises BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, NoRoute, BrokerUnknown, ClientError (header that cannot be read).
        After a failure of the connection the routes are looked at anew. Cancelled: the answer is dropped.
        """
        instance = self._instance
        address = await instance.reader_address(queue)
        header = PullMessageRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=PULL_SUBSCRIPTION | PULL_LITE,
            subscription=expression,
            expression_type=expression_type,
        )
        try:
            response = await instance.pool.call(address, request(RequestCode.LITE_PULL_MESSAGE, header), timeout_ms)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            instance.refresh_soon()
            raise
        status, said = pull_answer(response, queue, address)
        body = response.body if status is PullStatus.FOUND else b""
        return RawPull(status, body, said.next_begin_offset, said.min_offset, said.max_offset)

    async def query(self, topic: str, key: str, *, max_messages: int, begin_ms: int, end_ms: int) -> dict[str, RawQuery]:
        """Broker name -> what its index has under the key (also producers' unique ids) that was stored within [begin, end] (ms since 1970): the newest, at most
        `max_messages`. The index goes by hashes: records of other keys and topics may be among them.

        All masters are asked at the same time, and all must answer. Raises as `pull`.
        """
        instance = self._instance
        route = await instance.routes.for_reading(topic)
        masters = {broker.broker_name: broker.master for broker in route.data.broker_datas if broker.master is not None}
        header = QueryMessageRequestHeader(topic=topic, key=key, max_num=max_messages, begin_timestamp=begin_ms, end_timestamp=end_ms)
        found: dict[str, RawQuery] = {}
        failures: list[RmqError] = []

        async def ask(name: str, address: str) -> None:
            try:
                response = await instance.pool.call(address, request(RequestCode.QUERY_MESSAGE, header), QUERY_TIMEOUT_MS)
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
