"""The rows of a part over simulated sources: what becomes of bad records, with tags and keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.records import MAX_TOLD
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.partition_reader import rows_of_part
from pyspark_rocketmq.read.planning import Part
from pyspark_rocketmq.read.source import BadRecord, Block, QueueRange, Selection
from rmqkit.model.sysflag import COMPRESSED
from tests.spark.kit_numbers import Numbers
from tests.spark.kit_records import QUEUE, numbered, put

COUNT = 60


class Mixed(Numbers):
    """A queue in which the records at every third offset are called compressed and are not."""

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        for first in range(part.start, part.stop, 20):
            yield numbered(
                [
                    put(
                        b"%d" % at,
                        b"TAGS\x01%s\x02KEYS\x01k%d\x02" % (b"ab"[at % 2 : at % 2 + 1], at),
                        sys_flag=COMPRESSED if at % 3 == 0 else 0,
                    )
                    for at in range(first, first + 20)
                ],
                first,
            )


def read(
    streaming: bool, how: str, *, tags: tuple[str, ...] = (), key: str | None = None
) -> list[tuple[int, bytes | None]]:
    options = ReadOptions.parse(
        {"nameServer": "a:1", "topic": QUEUE.topic} | ({"badRecords": how} if how else {}), streaming
    )
    part = Part((QueueRange(QUEUE, 0, COUNT),), key)
    wanted = Projection(("queueOffset", "body"))
    batches = rows_of_part(Mixed(), options, wanted, part, Selection(tags=tags))
    return [(row["queueOffset"], row["body"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_bad_record_is_what_the_option_says(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Batches and streams fail by default, with the offset and the option in the error. Otherwise all others
    are read in order, and the log has the first bad records and their number."""
    for how in ("", "fail"):
        with pytest.raises(BadRecord, match=r"queue 3 at queue offset 0: .*badRecords=null or skip"):
            read(streaming, how)
    good = [(at, b"%d" % at) for at in range(COUNT) if at % 3]
    assert read(streaming, "skip") == good
    assert caplog.text.count("left out (badRecords=skip): ") == MAX_TOLD
    assert f"{COUNT // 3} bad records in this task" in caplog.text
    nulls = [(at, b"%d" % at if at % 3 else None) for at in range(COUNT)]
    assert read(streaming, "null") == nulls


def test_tags_and_keys_of_bad_records_count() -> None:
    """Properties of a record with a bad body are compared as those of others."""
    assert read(False, "null", tags=("a",), key="k6") == [(6, None)]
    assert read(False, "null", tags=("b",), key="k6") == []
    assert [at for at, _ in read(False, "null", tags=("a",))] == list(range(0, COUNT, 2))
