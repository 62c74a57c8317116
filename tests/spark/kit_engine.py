"""Spark's part in a streaming query, without Spark: a reader is asked for offsets and parts, and a copy of it
reads them."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import Factory, define
from pyspark.sql.datasource import DataSourceStreamReader

from pyspark_rocketmq import DefaultSource

_DEADLINE_S = 120.0


@define
class Engine:
    """A streaming query of the numbers of `kit_stream.bodies`. Offsets pass through JSON, readers and parts
    through pickle, as in Spark. `position` is kept when the query ends, as in a checkpoint; `sizes` are those
    of the micro-batches, and `numbers` is what they held."""

    position: Any = None
    sizes: list[int] = Factory(list)
    numbers: list[int] = Factory(list)

    @contextmanager
    def started(self, options: dict[str, Any]) -> Iterator[Query]:
        """The query from its position, or from the start of these options."""
        source = DefaultSource(options | {"columns": "body"})
        reader = source.streamReader(source.schema())
        try:
            yield Query(self, reader)
        finally:
            reader.stop()

    def run(self, options: dict[str, Any]) -> None:
        """Take micro-batches until nothing is new. Raises the error of the reader."""
        with self.started(options) as query:
            while query.batch():
                pass


@define
class Query:
    engine: Engine
    reader: DataSourceStreamReader

    def batch(self) -> int:
        """The size of the next micro-batch, 0 when there is none."""
        start = self.engine.position
        if start is None:
            start = self.engine.position = _stored(self.reader.initialOffset())
        end = _stored(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start:
            return 0
        parts, worker = pickle.loads(pickle.dumps((self.reader.partitions(start, end), self.reader)))
        bodies = [
            body for part in parts for rows in worker.read(part) for body in rows.column("body").to_pylist()
        ]
        self.engine.numbers += (int(body[:6]) for body in bodies)
        self.engine.sizes.append(len(bodies))
        self.engine.position = end
        return len(bodies)

    def read_to(self, count: int) -> None:
        """Take micro-batches until this number of messages has been read."""
        deadline = time.monotonic() + _DEADLINE_S
        while len(self.engine.numbers) < count:
            self.batch()
            assert time.monotonic() < deadline, f"{self.engine.numbers} were read of {count}"


def _stored(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))
