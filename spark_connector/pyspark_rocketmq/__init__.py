"""Spark's door: `spark.read.format("rocketmq")` finds `DefaultSource` here by the name of this package.

Spark imports every package named `pyspark_*` to find sources, and one that raises breaks the search for all: without PySpark nothing is defined here, and
everything else is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    # No PySpark, or one before 4.0: there is nobody to look for a source.
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
        """The format "rocketmq". Options: `pyspark_rocketmq.options.OPTIONS` to read, `pyspark_rocketmq.write_options` to write.

        Every method may raise OptionError.
        """

        @classmethod
        def name(cls) -> str:
            return "rocketmq"

        def schema(self) -> StructType:
            from pyspark_rocketmq.options import projection_of
            from pyspark_rocketmq.schemas import struct_of

            return struct_of(projection_of(self.options))

        def reader(self, schema: StructType) -> DataSourceReader:
            from pyspark_rocketmq.batch import batch_reader
            from pyspark_rocketmq.options import ReadOptions

            return batch_reader(ReadOptions.parse(self.options, streaming=False), schema)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            from pyspark_rocketmq.options import ReadOptions
            from pyspark_rocketmq.stream import StreamReader

            return StreamReader(ReadOptions.parse(self.options, streaming=True), schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            from pyspark_rocketmq.write import Writer

            return Writer(self.options, schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            from pyspark_rocketmq.write import StreamWriter

            return StreamWriter(self.options, schema, overwrite)
