"""Between Spark's schemas and projections."""

from __future__ import annotations

from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType, TimestampType

from pyspark_rocketmq.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.option_table import OptionError

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
    """The schema as Spark has it; every column may be null."""
    return StructType([StructField(name, _TYPES[projection.type_of(name)]) for name in projection.names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """What record batches must have for Spark to take them."""
    return to_arrow_schema(schema, timezone="UTC")


def fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch as Spark takes it. Columns that a user's schema forbids to be null are only named otherwise."""
    return batch if batch.schema.equals(wanted) else pa.RecordBatch.from_arrays(batch.columns, schema=wanted)


def projection_of_schema(schema: StructType) -> Projection:
    """The projection that a user's schema is: its columns in its order. Raises OptionError for a column that there is not, or not of that type."""
    for field in schema.fields:
        if field.name not in _NAMES:
            near = get_close_matches(field.name.lower(), {name.lower(): name for name in _NAMES}, n=1)
            meant = next((name for name in _NAMES if near and name.lower() == near[0]), None)
            asked = f"did you mean {meant}?" if meant else f"there are {', '.join(_NAMES)}"
            raise OptionError(f"the schema has a column {field.name}, messages have none of that name; {asked}")
    kinds = {field.name: field.dataType for field in schema.fields}
    projection = Projection(
        tuple(schema.names),
        "string" if kinds.get("body") == StringType() else "binary",
        "json" if kinds.get("properties") == StringType() else "map",
    )
    for wanted, made in zip(schema.fields, struct_of(projection).fields, strict=True):
        if not _alike(wanted.dataType, made.dataType):
            raise OptionError(
                f"the schema has column {wanted.name} as {wanted.dataType.simpleString()}, it is {made.dataType.simpleString()}"
            )
    return projection


def _alike(wanted: DataType, made: DataType) -> bool:
    return wanted.simpleString() == made.simpleString()
