"""What the stream of topics is held against: a source in Python that does next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

ROWS = 20


class PlainStream(DataSourceStreamReader):
    """A few rows from memory in every micro-batch, in one partition."""

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"at": start["at"] + ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin, end = partition.value
        yield pa.record_batch({"body": pa.array([b"%d" % number for number in range(begin, end)])})


class PlainSource(DataSource):
    """The format "plain"."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> str:
        return "body binary"

    def streamReader(self, schema: Any) -> PlainStream:
        return PlainStream()
