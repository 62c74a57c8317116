"""Rows become the same records as single messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.write.packing import OWN_PROPERTIES, Identity, Packer
from rmqkit.client import Message, MessageIllegal, PackedBatch
from rmqkit.protocol.message_id import UniqueKeys

TYPES = {
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "shardingKey": pa.string(),
    "flag": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
}
NOW_MS = 1_767_225_600_000
IDENTITY = Identity(query="q-1", batch=7, partition=3)
_word = st.text(
    st.characters(exclude_characters="\x01\x02|", exclude_categories=["Cs", "Cc", "Z"]),
    min_size=1,
    max_size=8,
)
_value = _word | st.just("a b | c")
_row = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=40),
        "tags": st.none() | st.just("") | _word.filter(lambda tag: tag != "*"),
        "keys": st.none() | st.lists(st.none() | st.just("") | _word, max_size=4),
        "shardingKey": st.none() | st.just("") | _word,
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "properties": st.none()
        | st.dictionaries(
            _word | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "SPARK_SEQ"]),
            st.none() | _value,
            max_size=4,
        ),
    }
)
Row = dict[str, Any]


def table(rows: list[Row], *columns: str) -> pa.RecordBatch:
    names = columns or tuple(TYPES)
    made = {}
    for name in names:
        values = [row.get(name) for row in rows]
        made[name] = pa.array(
            [list(each.items()) if isinstance(each, dict) else each for each in values], TYPES[name]
        )
    return pa.record_batch(made)


def packer(*columns: str, identity: Identity | None = IDENTITY) -> Packer:
    return Packer({name: name for name in columns or TYPES}, identity, UniqueKeys())


def unpacked(records: pa.LargeBinaryArray) -> list[Message]:
    return PackedBatch(topic="T", body=b"".join(records.to_pylist()), count=len(records)).messages()


def one_at_a_time(row: Row, columns: tuple[str, ...]) -> Message:
    """A row as the message that a program would create."""
    named = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "shardingKey"}
    taken = {*OWN_PROPERTIES, *(name for name, column in named.items() if column in columns)}
    properties = {
        name: value
        for name, value in (row.get("properties") or {}).items()
        if value is not None and name not in taken
    }
    texts = {
        "TAGS": row.get("tags"),
        "KEYS": " ".join(key for key in row.get("keys") or () if key),
        "__SHARDINGKEY": row.get("shardingKey"),
    }
    properties |= {name: text for name, text in texts.items() if text}
    return Message("T", row["body"], properties=properties, flag=row.get("flag") or 0)


@given(
    st.lists(_row, min_size=1, max_size=8),
    st.sets(st.sampled_from([name for name in TYPES if name != "body"])),
    st.integers(0, 3),
)
def test_packing_equals_one_message_at_a_time(rows: list[Row], chosen: set[str], skipped: int) -> None:
    """Packing is equal for every column, alone and combined, with nulls, empty texts and overridden entries,
    and for slices of a batch."""
    columns = ("body", *sorted(chosen))
    wanted = [{name: row[name] for name in columns} for row in rows]
    got = unpacked(packer(*columns, identity=None).pack(table(wanted, *columns).slice(skipped), NOW_MS))
    assert len(got) == len(wanted[skipped:])
    for message, row in zip(got, wanted[skipped:], strict=True):
        expected = one_at_a_time(row, columns)
        properties = dict(message.properties)
        assert len(properties.pop("UNIQ_KEY")) == 32
        assert (message.body, message.flag, properties) == (expected.body, expected.flag, expected.properties)


def test_rows_tell_where_they_come_from() -> None:
    """Query, batch and partition are those of the task; the number counts across batches. A batch job has no
    batch number."""
    made = packer("body")
    messages = [
        each for _ in range(2) for each in unpacked(made.pack(table([{"body": b"x"}] * 2, "body"), NOW_MS))
    ]
    seen = [
        {name: value for name, value in each.properties.items() if name.startswith("SPARK")}
        for each in messages
    ]
    assert seen == [
        {"SPARK_QUERY": "q-1", "SPARK_BATCH": "7", "SPARK_PART": "3", "SPARK_SEQ": str(n)} for n in range(4)
    ]
    job = packer("body", identity=Identity(query="q-1", batch=None, partition=0))
    assert "SPARK_BATCH" not in unpacked(job.pack(table([{"body": b"x"}], "body"), NOW_MS))[0].properties


def test_writes_of_one_batch_are_told_apart() -> None:
    """Two writes of the same rows differ in the number of the write, rows at the same place in their digest,
    and a repeated write is the same: the digest covers body, tags, keys and properties."""

    def identities(write: str, *rows: Row) -> list[tuple[str, ...]]:
        identity = Identity(query="q-1", batch=7, partition=3, write=write)
        made = packer("body", "tags", "keys", "properties", identity=identity)
        found = unpacked(made.pack(table(list(rows), "body", "tags", "keys", "properties"), NOW_MS))
        names = ("SPARK_QUERY", "SPARK_BATCH", "SPARK_PART", "SPARK_SEQ")
        return [tuple(each.properties[name] for name in names) for each in found]

    rows: list[Row] = [
        {"body": b"x"},
        {"body": b"y"},
        {"body": b"x", "tags": "t"},
        {"body": b"x", "keys": ["t"]},
        {"body": b"x", "properties": {"t": "u"}},
    ]
    first = identities("1", *rows)
    assert [(batch, seq[:-16]) for _, batch, _, seq in first] == [("7", f"{at}.1-") for at in range(5)]
    assert first == identities("1", *rows)
    assert not set(first) & set(identities("2", *rows))
    alone = [identities("1", row)[0] for row in rows]
    assert len(set(alone)) == 5


def test_unique_keys_differ_within_one_millisecond() -> None:
    """Many batches in the same millisecond have distinct ids."""
    made, rows = packer("body"), table([{"body": b"x"}] * 5000, "body")
    keys = [each.properties["UNIQ_KEY"] for _ in range(14) for each in unpacked(made.pack(rows, NOW_MS))]
    assert len(set(keys)) == 70_000


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": None}, "row 3 of partition 3 has no body"),
        ({"body": b""}, "row 3 of partition 3 has no body"),
        ({"body": b"x", "tags": "a||b"}, r"row 3 of partition 3 has a tag that is .* contains \|\|"),
        ({"body": b"x", "tags": "*"}, r"row 3 of partition 3 has a tag that is \*"),
        ({"body": b"x", "tags": " a"}, "row 3 of partition 3 has a tag .* begins or ends with a blank"),
        ({"body": b"x", "tags": "a\t"}, "row 3 of partition 3 has a tag .* begins or ends with a blank"),
        ({"body": b"x", "tags": "a\u3000"}, "row 3 of partition 3 has a tag .* begins or ends with a blank"),
        ({"body": b"x", "tags": "a\x01b"}, "row 3 of partition 3 has a separator .* what becomes TAGS"),
        (
            {"body": b"x", "shardingKey": "a\x02b"},
            "row 3 of partition 3 has a separator .* what becomes __SHARDINGKEY",
        ),
        ({"body": b"x", "keys": ["fine", "not fine"]}, "'not fine' contains a space"),
        ({"body": b"x", "properties": {"fine": "x", "not": "\x02"}}, "property 'not' has a separator"),
        (
            {"body": b"x", "properties": {"p": "x" * 32_767}},
            "row 3 of partition 3 has more than 32767 bytes of properties",
        ),
    ],
)
def test_rows_that_no_message_can_carry_are_named(row: Row, text: str) -> None:
    """The row's number within its partition counts across batches."""
    made = packer()
    made.pack(table([{"body": b"x"}] * 2), NOW_MS)
    with pytest.raises(MessageIllegal, match=text):
        made.pack(table([{"body": b"x"}, row]), NOW_MS)


def test_keys_may_be_one_text() -> None:
    """Keys in the form of a read are accepted: several keys separated by spaces, empty for none."""
    rows = pa.record_batch({"body": pa.array([b"x", b"y"]), "keys": pa.array(["k1 k2", ""])})
    first, second = unpacked(packer("body", "keys").pack(rows, NOW_MS))
    assert first.properties["KEYS"] == "k1 k2"
    assert "KEYS" not in second.properties


def test_keys_that_are_missing_among_others_cost_no_key() -> None:
    """Null and empty elements of an array are left out; the other keys of the row stay."""
    lists = [["k1", None, "k2"], ["", "x"], [None], [], None, ["y", ""]]
    rows = pa.record_batch({"body": pa.array([b"x"] * 6), "keys": pa.array(lists)})
    got = [each.properties.get("KEYS") for each in unpacked(packer("body", "keys").pack(rows, NOW_MS))]
    assert got == ["k1 k2", "x", None, None, None, "y"]


def test_one_arrow_batch_has_a_limit() -> None:
    """More rows than a millisecond has ids are refused with the setting to change."""
    rows = pa.record_batch({"body": pa.array([b"x"] * 65_537)})
    with pytest.raises(MessageIllegal, match=r"maxRecordsPerBatch"):
        packer("body").pack(rows, NOW_MS)
