"""Encoding of large tables as JSON in parts."""

from __future__ import annotations

import msgspec
import pytest

from rmqkit.model.table_parts import table_parts
from rmqkit.model.topic import ConsumerOffsetFile, TopicConfigTable


@pytest.mark.parametrize("entries", [0, 1, 255, 256, 257, 1_000])
def test_a_table_is_encoded_in_parts(entries: int) -> None:
    """The parts together are the JSON of the whole table."""
    table = {f"T{number}@g": {0: number, 1: 7} for number in range(entries)}
    parts = list(table_parts(ConsumerOffsetFile(), "offsetTable", table.items()))
    assert len(parts) == 2 + entries // 256
    assert msgspec.json.decode(b"".join(parts), type=ConsumerOffsetFile) == ConsumerOffsetFile(
        offset_table=table
    )


def test_a_table_that_the_type_has_not_is_an_error() -> None:
    """An unknown table raises an error instead of giving a file without entries."""
    with pytest.raises(ValueError, match="TopicConfigTable has no table offsetTable"):
        list(table_parts(TopicConfigTable(), "offsetTable", ()))
