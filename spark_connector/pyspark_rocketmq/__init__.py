"""Entry point of Spark: `spark.read.format("rocketmq")` finds `DefaultSource` by the name of this package.

Spark imports every package named `pyspark_*` to find sources, and an import error in one of them breaks the
search for all. Without PySpark nothing is defined here, and everything else is imported on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    # PySpark is missing or older than 4.0, so no data source can be registered.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]

    if TYPE_CHECKING:
        from pyspark.sql.datasource import (
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamArrowWriter,
            DataSourceStreamReader,
        )
        from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """The format "rocketmq". Reading options: `pyspark_rocketmq.options.read.OPTIONS`; writing options:
        `pyspark_rocketmq.options.write.WRITE_OPTIONS`.

        Every method may raise OptionError, except `streamReader`, whose reader does so when it is used.
        """

        @classmethod
        def name(cls) -> str:
            return "rocketmq"

        def schema(self) -> StructType:
            from pyspark_rocketmq.decode.schemas import struct_of
            from pyspark_rocketmq.options.read import projection_of

            return struct_of(projection_of(self.options))

        def reader(self, schema: StructType) -> DataSourceReader:
            from pyspark_rocketmq.options.read import ReadOptions
            from pyspark_rocketmq.read.batch import batch_reader

            return batch_reader(ReadOptions.parse(self.options, streaming=False), schema)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            from pyspark_rocketmq.stream.reader import stream_reader

            return stream_reader(self.options, schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            from pyspark_rocketmq.write.writer import Writer

            return Writer(self.options, schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            from pyspark_rocketmq.write.writer import StreamWriter

            return StreamWriter(self.options, schema, overwrite)
