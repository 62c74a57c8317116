"""The columns of a message in Spark, and the selection of columns."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

#: Column -> Spark type, in the order of the default schema.
DEFAULT_COLUMNS: dict[str, str] = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "keys": "string",
    "tags": "string",
    "body": "binary",
    "flag": "int",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "reconsumeTimes": "int",
    "properties": "map<string,string>",
}

#: Added by the option includeMetadata.
METADATA_COLUMNS: dict[str, str] = {
    "sysFlag": "int",
    "bornHost": "string",
    "storeHost": "string",
    "physicalOffset": "bigint",
    "storeSize": "int",
    "bodyCrc": "int",
    "preparedTransactionOffset": "bigint",
    "deliveryTimestamp": "timestamp",
}


@frozen
class Projection:
    """The columns to produce, in order; the form of body and properties; whether the checksums of bodies are
    checked; whether a record that cannot be decoded is an error, a row with nulls, or left out."""

    names: tuple[str, ...]
    body: Literal["binary", "string"] = "binary"
    properties: Literal["map", "json"] = "map"
    check_crc: bool = True
    bad_records: Literal["fail", "null", "skip"] = "fail"

    def type_of(self, name: str) -> str:
        """The Spark type of a column."""
        if name == "body":
            return self.body
        if name == "properties" and self.properties == "json":
            return "string"
        return DEFAULT_COLUMNS.get(name) or METADATA_COLUMNS[name]
