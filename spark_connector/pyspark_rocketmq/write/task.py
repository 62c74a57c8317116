"""The work of one write task: rows of one partition in, acknowledged messages out. Independent of Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from msgspec import structs

from pyspark_rocketmq.options.connection import client_keywords
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.write.packing import Identity, Packer
from pyspark_rocketmq.write.routing import Place, Router
from pyspark_rocketmq.write.sending import Sender, SendLimits, Tally
from rmqkit.client import BlockingClient, Message, MessageIllegal, PackedBatch
from rmqkit.limits import MAX_BATCH_MESSAGES
from rmqkit.model import properties as props
from rmqkit.protocol.message_id import UniqueKeys

_TOO_LARGE = (
    "a message with its properties has {} bytes, at most {} can be sent; brokers accept more with a"
    " larger maxMessageSize, this connector does not"
)
#: A batch has about `batchBytes`; a single message may be larger, up to the brokers' default limit.
MAX_RECORD_BYTES = 4 * 1024 * 1024
#: Levels of brokers, as in the default messageDelayLevel.
MAX_DELAY_LEVEL = 18
_DELAYING = {"delayLevel": props.DELAY, "deliverAt": props.TIMER_DELIVER_MS}


@frozen
class WriteJob:
    """Data shared by all tasks of a job. `columns`: column of the connector -> column of the frame."""

    options: WriteOptions
    columns: Mapping[str, str]


def connect(options: WriteOptions) -> BlockingClient:
    """A client of the cluster that has not been opened."""
    return BlockingClient(options.name_server, **client_keywords(options))


def write_rows(
    job: WriteJob, client: BlockingClient, batches: Iterable[pa.RecordBatch], identity: Identity | None
) -> Tally:
    """Send every row and wait until all are acknowledged.

    Raises RmqError when a row cannot be sent; rows sent before remain. An error of `batches` is passed on,
    and unacknowledged sends are dropped.
    """
    options = job.options
    limits = SendLimits(
        in_flight=options.max_in_flight,
        timeout_ms=options.send_timeout_ms,
        retries=options.send_num_retries,
        retry_interval_ms=options.send_retry_interval_ms,
    )
    asynchronous = client.asynchronous
    with client.enter(
        asynchronous.producer(options.producer_group, timeout_ms=options.send_timeout_ms)
    ) as producer:
        packer = Packer(job.columns, identity, UniqueKeys(asynchronous.settings.packed_ip))
        router = Router(job.columns, options, lambda topic: client.run(producer.queues, topic))
        with client.enter(Sender(producer, limits)) as sender:
            for rows in batches:
                if not rows.num_rows:
                    continue
                records = packer.pack(rows, time.time_ns() // 1_000_000)
                plain, delayed = _parted(rows, records, job.columns)
                for place, packed in _packed(router, *plain, options.batch_bytes):
                    client.run(sender.put, place, packed)
                for place, message in _delayed(router, *delayed, job.columns):
                    client.run(sender.put_single, place, message)
            return client.run(sender.settled)


_Rows = tuple[pa.RecordBatch, pa.LargeBinaryArray]


def _parted(
    rows: pa.RecordBatch, records: pa.LargeBinaryArray, columns: Mapping[str, str]
) -> tuple[_Rows, _Rows]:
    """Separate the rows for batches from delayed ones, which batches cannot contain."""
    late = np.zeros(rows.num_rows, np.bool_)
    for name in _DELAYING:
        if name in columns:
            late |= pc.fill_null(
                pc.not_equal(rows.column(columns[name]).cast(pa.int64()), 0), False
            ).to_numpy(zero_copy_only=False)
    if not late.any():
        return (rows, records), (rows.slice(0, 0), records.slice(0, 0))
    mask, other = pa.array(late), pa.array(~late)
    return (rows.filter(other), records.filter(other)), (rows.filter(mask), records.filter(mask))


def _packed(
    router: Router, rows: pa.RecordBatch, records: pa.LargeBinaryArray, batch_bytes: int
) -> Iterator[tuple[Place, PackedBatch]]:
    for place, numbers in router.places(rows):
        chosen = records if numbers is None else records.take(pa.array(numbers))
        for body, count in cut(chosen, batch_bytes):
            yield place, PackedBatch(topic=place.topic, body=body, count=count)


def cut(records: pa.LargeBinaryArray, batch_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Join records to batches of at most `batch_bytes`, or of a single record, with their numbers. Raises
    MessageIllegal for a record that is too large."""
    if not len(records):
        return
    _, offsets_buffer, data = records.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[records.offset : records.offset + len(records) + 1]
    largest = int(np.diff(offsets).max())
    if largest > MAX_RECORD_BYTES:
        raise MessageIllegal(_TOO_LARGE.format(largest, MAX_RECORD_BYTES))
    begin = 0
    while begin < len(records):
        fitting = int(np.searchsorted(offsets, offsets[begin] + batch_bytes, "right")) - 1
        end = min(max(fitting, begin + 1), begin + MAX_BATCH_MESSAGES)
        yield data.slice(int(offsets[begin]), int(offsets[end] - offsets[begin])).to_pybytes(), end - begin
        begin = end


def _delayed(
    router: Router, rows: pa.RecordBatch, records: pa.LargeBinaryArray, columns: Mapping[str, str]
) -> Iterator[tuple[Place, Message]]:
    """Messages one by one, because brokers refuse batches with delays."""
    if not rows.num_rows:
        return
    wanted = {name: rows.column(columns[name]) for name in _DELAYING if name in columns}
    if "deliverAt" in wanted and pa.types.is_timestamp(wanted["deliverAt"].type):
        wanted["deliverAt"] = wanted["deliverAt"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    times = {name: column.to_pylist() for name, column in wanted.items()}
    for level in times.get("delayLevel", ()):
        if not 0 <= (level or 0) <= MAX_DELAY_LEVEL:
            raise MessageIllegal(
                f"column delayLevel: {level} is not a delay level; there are 1 to {MAX_DELAY_LEVEL}, and 0 or"
                " null for no delay"
            )
    for moment in times.get("deliverAt", ()):
        if (moment or 0) < 0:
            raise MessageIllegal(f"column deliverAt: {moment} ms is before 1970; null or 0 means no delay")
    for place, numbers in router.places(rows):
        for number in range(rows.num_rows) if numbers is None else numbers.tolist():
            given = {_DELAYING[name]: str(values[number]) for name, values in times.items() if values[number]}
            if len(given) > 1:
                raise MessageIllegal("a row has both delayLevel and deliverAt; use one of them")
            packed = PackedBatch(topic=place.topic, body=records[number].as_py(), count=1)
            (message,) = packed.messages()
            yield place, structs.replace(message, properties={**message.properties, **given})
