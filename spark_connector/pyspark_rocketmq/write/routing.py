"""Determines the destination of each row: the rows of a batch that share a topic and a queue, column by
column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from pyspark_rocketmq.options.write import WriteOptions
from rmqkit.client import ClientError, MessageQueue
from rmqkit.client.producing.queue_choice import by_key

_CHOOSING = ("topic", "brokerName", "queueId", "shardingKey")


@frozen
class Place:
    """A topic, and the queue if a column chooses it. Rows with a queue stay in order."""

    topic: str
    queue: MessageQueue | None = None


class Router:
    """Groups rows by destination.

    columns  column of the connector -> column of the frame
    options  their topic takes precedence over the column
    queues   function that returns the writable queues of a topic; called once per topic
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        options: WriteOptions,
        queues: Callable[[str], Sequence[MessageQueue]],
    ) -> None:
        self._columns = {
            name: columns[name]
            for name in _CHOOSING
            if name in columns and not (name == "topic" and options.topic)
        }
        self._options = options
        self._topic = options.topic_name(options.topic) if options.topic else ""
        self._ask = queues
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._turn = count()

    def places(self, rows: pa.RecordBatch) -> Iterator[tuple[Place, NDArray[np.int64] | None]]:
        """Destinations and the numbers of their rows, in order; None for all rows. Raises ClientError for a
        row without a destination."""
        if not self._columns:
            yield Place(self._topic), None
            return
        groups, firsts = self._groups(rows)
        chosen = pa.record_batch({name: rows.column(column) for name, column in self._columns.items()}).take(
            pa.array(firsts)
        )
        numbers: dict[Place, int] = {}
        place_of = np.array(
            [numbers.setdefault(self._place(row), len(numbers)) for row in chosen.to_pylist()], np.int64
        )
        if len(numbers) == 1:
            yield next(iter(numbers)), None
            return
        row_places = place_of[groups]
        order = np.argsort(row_places, kind="stable")
        ends = np.cumsum(np.bincount(row_places, minlength=len(numbers)))
        for place, number in numbers.items():
            yield place, order[ends[number - 1] if number else 0 : ends[number]]

    def _groups(self, rows: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each row the number of its combination of values, and for each combination its first row."""
        groups = np.zeros(rows.num_rows, np.int64)
        firsts = np.zeros(min(rows.num_rows, 1), np.int64)
        for column in self._columns.values():
            values = rows.column(column).dictionary_encode(null_encoding="encode")
            codes = values.indices.to_numpy(zero_copy_only=False)
            _, firsts, groups = np.unique(
                groups * len(values.dictionary) + codes, return_index=True, return_inverse=True
            )
        return groups, firsts

    def _place(self, row: Mapping[str, Any]) -> Place:
        topic = self._topic
        if not topic:
            if not row["topic"]:
                raise ClientError("a row has no topic; fill the column, or set the option topic")
            topic = self._options.topic_name(row["topic"])
        broker, queue_id, key = row.get("brokerName"), row.get("queueId"), row.get("shardingKey")
        if key:
            return Place(topic, by_key(self._of_broker(topic, broker), key))
        if queue_id is None and broker is None:
            return Place(topic)
        queues = self._of_broker(topic, broker)
        if queue_id is None:
            return Place(topic, queues[next(self._turn) % len(queues)])
        fitting = [queue for queue in queues if queue.queue_id == queue_id]
        if len(fitting) > 1:
            names = ", ".join(queue.broker_name for queue in fitting)
            raise ClientError(
                f"queue {queue_id} of topic {topic!r} is on several brokers ({names}); select one with the"
                " column brokerName"
            )
        if not fitting:
            raise ClientError(
                f"topic {topic!r} has no queue {queue_id}{f' on broker {broker}' if broker else ''}, only"
                f" {_listed(queues)}; drop the columns queueId and brokerName to spread the rows over all"
                " queues"
            )
        return Place(topic, fitting[0])

    def _of_broker(self, topic: str, broker: str | None) -> Sequence[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._ask(topic)
        found = queues if broker is None else [queue for queue in queues if queue.broker_name == broker]
        if not found:
            raise ClientError(
                f"topic {topic!r} is not on broker {broker!r}, only on"
                f" {', '.join(sorted({each.broker_name for each in queues}))}"
            )
        return found


def _listed(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
