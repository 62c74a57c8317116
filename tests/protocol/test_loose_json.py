"""fastjson's JSON: both parsers agree on strict input, loose forms are decoded to the same values, and the
output is compact."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import DataVersion, TopicConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.loose_json import _Parser

PROPERTY = settings(max_examples=120, deadline=None, database=None)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
queues = st.builds(
    MessageQueue, topic=st.text(max_size=8), broker_name=st.text(max_size=8), queue_id=st.integers(-1, 100)
)


@PROPERTY
@given(json_values)
def test_dumps_and_loads(value: Any) -> None:
    """Any JSON value is restored from its compact text."""
    assert loose_json.loads(loose_json.dumps(value)) == value
    assert loose_json.loads(loose_json.dumps(value, raw_keys=True)) == value


@pytest.mark.row("S317")
@PROPERTY
@given(json_values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_parsers_agree(value: Any, ascii_only: bool, indent: int | str | None) -> None:
    """For strict JSON in any layout and escaping, the loose and the strict parser give the same value."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert _Parser(text).document() == msgspec.json.decode(text)


@PROPERTY
@given(json_values)
def test_loose_layout(value: Any) -> None:
    """Comments, trailing commas and single quotes change nothing."""

    def write(item: Any) -> str:
        if isinstance(item, dict):
            return (
                "{/* o */"
                + "".join(f"{json.dumps(key)} : {write(member)}, " for key, member in item.items())
                + "}"
            )
        if isinstance(item, list):
            return "[ // a\n" + "".join(write(member) + " ,\n" for member in item) + "]"
        if isinstance(item, str):
            return "'" + json.dumps(item)[1:-1].replace("'", "\\'") + "'"
        return json.dumps(item)

    assert loose_json.loads(write(value)) == value


@PROPERTY
@given(st.dictionaries(st.integers(-(2**63), 2**63), json_values, max_size=4))
def test_raw_integer_keys(table: dict[int, Any]) -> None:
    """Integer keys are written bare and decoded as their digits."""
    written = loose_json.dumps({"offsetTable": table}, raw_keys=True)
    assert loose_json.loads(written) == {"offsetTable": {str(key): item for key, item in table.items()}}
    assert all(
        f"{key}:".encode() in written and f'"{key}":'.encode() not in written
        for key in table
        if not any(map(str, table.values()))
    )


@PROPERTY
@given(st.dictionaries(queues, st.integers(0, 2**63), max_size=4))
def test_raw_object_keys(table: dict[MessageQueue, int]) -> None:
    """Queues as keys are written as bare objects with members in alphabetical order, and each decoded key
    text is that object."""
    written = loose_json.dumps({"offsetTable": table}, raw_keys=True)
    read = loose_json.loads(written)["offsetTable"]
    assert {loose_json.decode(key, MessageQueue): offset for key, offset in read.items()} == table
    assert (b'{"offsetTable":{{"brokerName":' in written) is bool(table)


def test_object_keys_have_no_strict_form() -> None:
    """A table of queues cannot be written in a form that a RocketMQ 5.5 client refuses."""
    with pytest.raises(TypeError):
        loose_json.dumps({"offsetTable": {MessageQueue("T", "b", 0): 1}})


def test_raw_keys_of_structs() -> None:
    """Structs are written with their wire names at any depth, beside tables with bare keys."""
    value = {
        "v": DataVersion(counter=1),
        "list": [{1: TopicConfig(topic_name="T", attributes={"a": "b"})}],
        "t": (1, None),
    }
    written = loose_json.dumps(value, raw_keys=True)
    assert b'"list":[{1:{"topicName":"T",' in written
    assert loose_json.loads(written) == {
        "v": {"stateVersion": 0, "timestamp": 0, "counter": 1},
        "list": [{"1": msgspec.to_builtins(TopicConfig(topic_name="T", attributes={"a": "b"}))}],
        "t": [1, None],
    }


@pytest.mark.parametrize("key", ["{x}", "{", "{}}", '{"a":}', "{\n", '{"a":1}', "7"])
def test_text_that_looks_like_an_object(key: str) -> None:
    """A text key is always quoted, so that a user's name cannot change the surrounding structure."""
    written = loose_json.dumps({key: 1}, raw_keys=True)
    assert msgspec.json.decode(written) == {key: 1}


def test_compact() -> None:
    """There are no spaces between tokens, because the Go client parses some bodies by text search."""
    assert loose_json.dumps({"a": [1, {"b": None}], "c": "d e"}) == b'{"a":[1,{"b":null}],"c":"d e"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ("{-5:1}", {"-5": 1}),
        ('{{"b":1,"a":"x"}:2}', {'{"b":1,"a":"x"}': 2}),
        ('{ { "b" : 1 } : 2 }', {'{"b":1}': 2}),
        ("{name:'it\\'s',$ref:\"$.a\"}", {"name": "it's", "$ref": "$.a"}),
        ("[1,2,]", [1, 2]),
        ("{a:1,}", {"a": 1}),
        ("/* c */ {a:1} // end", {"a": 1}),
        ("{a:1L,b:2.5D,c:3F}", {"a": 1, "b": 2.5, "c": 3}),
        ("{a:NaN,b:undefined,c:true}", {"a": None, "b": None, "c": True}),
        ("'\\x41\\u0042\\v\\0'", "AB\v\0"),
        ('{a:"first","a":"last"}', {"a": "last"}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("", None),
        (b"", None),
        ("null", None),
    ],
)
def test_loose_shapes(text: str | bytes, value: object) -> None:
    """fastjson's extensions of JSON are decoded to the strict values."""
    assert loose_json.loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "{", "[", "{a", "{a:", "{a:1", "{a:1,", "[1", "[1,", '"a', "'a", "[,]", "{,}", "{a}", "{:1}", "{a 1}",
        "[1 2]", "{a:1 b:2}", "{a:1}x", "[] []", "tru", "nul", "a", "-", "+1", "01",
        "'\\q'", "'\\u12'", "'\\x'", '"\\u 123"', "{[1]:2}", "{/*:1}", "/*", "\0",
    ],
)  # fmt: skip
def test_no_json(text: str) -> None:
    """Any other text raises DecodeError."""
    with pytest.raises(DecodeError):
        loose_json.loads(text)


class Shape(msgspec.Struct, kw_only=True):
    name: str
    count: int = 0
    flag: bool = False
    ratio: float = 0.0
    names: list[str] = []
    optional: str | None = "default"


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b'{"name":"x"}', Shape(name="x")),
        (
            b'{"name":5,"count":"7","flag":"true","ratio":"1.5"}',
            Shape(name="5", count=7, flag=True, ratio=1.5),
        ),
        (b'{"name":true,"names":[1,false,"x"]}', Shape(name="true", names=["1", "false", "x"])),
        (b"{name:-1.5,count:1,flag:true}", Shape(name="-1.5", count=1, flag=True)),
        (b'{"name":5,"names":null,"optional":null}', Shape(name="5")),
        (b'{"name":"x","unknown":{"deep":[1]}}', Shape(name="x")),
    ],
)
def test_typed_bodies(body: bytes, shape: Shape) -> None:
    """Numbers and booleans in text members and the reverse are accepted; null and unknown members are
    ignored."""
    assert loose_json.decode(body, Shape) == shape


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b"{}",
        b'{"name":null}',
        b'{"name":"x","count":"y"}',
        b'{"name":["x"]}',
        b'{"name":"x","names":{}}',
    ],
)
def test_bodies_of_another_shape(body: bytes) -> None:
    """A body without a required member, or with a wrong type in it, raises DecodeError."""
    with pytest.raises(DecodeError):
        loose_json.decode(body, Shape)
