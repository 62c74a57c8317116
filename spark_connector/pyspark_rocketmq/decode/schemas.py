"""Conversion between Spark's schemas and projections."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.options.table import OptionError
from rmqkit.errors import did_you_mean

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
_NAMES = (*DEFAULT_COLUMNS, *METADATA_COLUMNS)


def struct_of(projection: Projection) -> StructType:
    """The schema as a Spark type; every column is nullable."""
    return StructType([StructField(name, _TYPES[projection.type_of(name)]) for name in projection.names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark requires of record batches."""
    return to_arrow_schema(schema, timezone="UTC")


def fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch in the form that Spark accepts. Columns that the user's schema declares not nullable differ
    only in the schema."""
    return batch if batch.schema.equals(wanted) else pa.RecordBatch.from_arrays(batch.columns, schema=wanted)


def projection_of_schema(schema: StructType) -> Projection:
    """The projection for a user's schema: its columns in its order. Raises OptionError for an unknown column
    or a wrong type."""
    for field in schema.fields:
        if field.name not in _NAMES:
            hint = did_you_mean(field.name, _NAMES, f"; there are {', '.join(_NAMES)}")
            raise OptionError(f"the schema has a column {field.name}, messages have none of that name{hint}")
    kinds = {field.name: field.dataType for field in schema.fields}
    projection = Projection(
        tuple(schema.names),
        "string" if kinds.get("body") == StringType() else "binary",
        "json" if kinds.get("properties") == StringType() else "map",
    )
    for wanted, made in zip(schema.fields, struct_of(projection).fields, strict=True):
        if not _alike(wanted.dataType, made.dataType):
            raise OptionError(
                f"the schema has column {wanted.name} as {wanted.dataType.simpleString()}, it is"
                f" {made.dataType.simpleString()}"
            )
    return projection


def _alike(wanted: DataType, made: DataType) -> bool:
    return wanted.simpleString() == made.simpleString()
