"""Messages, their properties and subscriptions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import MessageIllegal
from rmqkit.model import properties as props
from rmqkit.model.message import Message, PutMessage
from rmqkit.model.subscription import SubscriptionData, tag_subscription
from rmqkit.protocol.tags import java_hash

PROPERTY = settings(max_examples=200, deadline=None, database=None)
clean = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)


@PROPERTY
@given(st.dictionaries(clean, clean, max_size=5))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    """Names and values without separators are restored in order; the last separator is optional."""
    text = props.encode(properties)
    assert list(props.decode(text).items()) == list(properties.items())
    assert props.decode(text.removesuffix("\x02")) == properties


@PROPERTY
@given(st.text(st.sampled_from("ab\x01\x02"), max_size=20))
def test_decode_follows_java(text: str) -> None:
    """As in Java, items below three characters, without a name or without a value are dropped, and the last
    of equal names counts."""
    expected: dict[str, str] = {}
    for item in text.split("\x02"):
        at = item.find("\x01")
        if len(item) >= 3 and at > 0 and at < len(item) - 1:
            expected[item[:at]] = item[at + 1 :]
    assert props.decode(text) == expected


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01\x02b\x01c\x02", {"b": "c"}),
        ("\x01v\x02b\x01c\x02", {"b": "c"}),
        ("ab\x02\x02b\x01c\x02", {"b": "c"}),
        ("a\x01x\x01y\x02", {"a": "x\x01y"}),
        ("a\x01first\x02a\x01last\x02", {"a": "last"}),
    ],
)
def test_dropped_items(text: str, read: dict[str, str]) -> None:
    """Invalid items are dropped and valid ones beside them stay; a second 0x01 belongs to the value."""
    assert props.decode(text) == read


def test_empty_values_are_left_out() -> None:
    """Readers drop empty values, so none is written."""
    assert props.encode({"a": "", "b": "c"}) == "b\x01c\x02"


@pytest.mark.parametrize("item", [("a\x01", "b"), ("a\x02", "b"), ("a", "b\x02c"), ("", "b")])
def test_separators_inside(item: tuple[str, str]) -> None:
    """What would be read as other properties is refused."""
    with pytest.raises(MessageIllegal, match="separator"):
        props.encode(dict([item]))


def test_values_with_the_end_of_a_name() -> None:
    """A value is everything behind the first 0x01, so it may contain further ones."""
    assert props.encode({"row": "a\x01b\x01"}) == "row\x01a\x01b\x01\x02"
    assert props.decode("row\x01a\x01b\x01\x02") == {"row": "a\x01b\x01"}


separators = st.sampled_from([b"\x01", b"\x02", b"a", b"DELAY", b"\xa4", b"\xed\xa0\x80", "中".encode()])
texts = st.lists(separators | st.binary(max_size=3), max_size=20).map(b"".join)


@PROPERTY
@given(texts)
def test_what_was_read_can_be_written(stored: bytes) -> None:
    """Every text of a peer is read, and what was read is written and read again without a difference."""
    found = props.decode_bytes(stored)
    assert props.decode(props.encode(found)) == found


@PROPERTY
@given(texts, st.sets(st.sampled_from(["a", "DELAY", "\ufffd"])), st.dictionaries(clean, clean, max_size=2))
def test_edited(stored: bytes, removed: set[str], added: dict[str, str]) -> None:
    """Properties are removed and added; the bytes of the others stay."""
    result = props.edited(stored, removed, added)
    before = props.decode_bytes(stored)
    kept = {name: value for name, value in before.items() if name not in removed}
    assert props.decode_bytes(result) == kept | added
    items = stored.split(b"\x02")
    own = result.removesuffix(props.encode(added).encode()).split(b"\x02")
    assert own == [each for each in items if each in own and each] + [b""]


@PROPERTY
@given(texts, st.dictionaries(clean, clean, max_size=3))
def test_changed(stored: bytes, wanted: dict[str, str]) -> None:
    """The text has exactly the wanted properties, those that stay in their stored bytes."""
    before = props.decode_bytes(stored)
    assert props.decode_bytes(props.changed(stored, wanted)) == wanted
    assert props.decode_bytes(props.changed(stored, before | wanted)) == before | wanted
    assert props.changed(stored, before) == b"".join(each + b"\x02" for each in stored.split(b"\x02") if each)


@pytest.mark.parametrize(
    ("keys", "split"),
    [
        (None, ()),
        ("", ()),
        ("  ", ()),
        (" a  b ", ("a", "b")),
        ("a\tb\u3000c\u00a0d\n", ("a\tb\u3000c\u00a0d\n",)),
    ],
)
def test_keys(keys: str | None, split: tuple[str, ...]) -> None:
    """Only a space separates keys, as in Java; any other blank belongs to a key."""
    assert props.split_keys(keys) == split


def test_set_properties() -> None:
    """The text on disk and the tag code follow the properties."""
    message = PutMessage(topic="T", queue_id=0, body=b"", properties={}, properties_bytes=b"")
    given_properties = {"TAGS": "中文", "k": "v"}
    message.set_properties(given_properties)
    assert props.decode(message.properties_bytes.decode()) == message.properties == given_properties
    assert message.tags_code == java_hash("中文") == 646394
    given_properties["later"] = "x"
    assert "later" not in message.properties
    message.set_properties({})
    assert (message.properties_bytes, message.tags_code) == (b"", 0)


def test_set_properties_keeps_bytes() -> None:
    """Properties that stay keep their stored bytes, which need not be UTF-8, and their places."""
    stored = b"row\x01a\x01b\xa4\x02DELAY\x013\x02TAGS\x01\xa4\x02"
    message = PutMessage("T", 0, b"b", props.decode_bytes(stored), stored)
    message.set_properties(message.properties | {"DELAY": "2", "REAL_QID": "7"})
    assert message.properties_bytes == b"row\x01a\x01b\xa4\x02TAGS\x01\xa4\x02DELAY\x012\x02REAL_QID\x017\x02"
    assert message.tags_code == java_hash("\ufffd")


def test_all_properties() -> None:
    """Tag, keys, ordering key, delay level and wait become RocketMQ's properties; the message's own come
    first and none is lost."""
    message = Message(
        topic="T",
        body=b"b",
        tag="TagA",
        keys=["k1", "k2"],
        properties={"own": "1", "TAGS": "overridden"},
        ordering_key="order-7",
        delay_level=3,
        priority=0,
        wait_store=False,
    )
    assert message.all_properties() == {
        "own": "1",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "order-7",
        "DELAY": "3",
        "_SYS_MSG_PRIORITY_": "0",
        "WAIT": "false",
    }
    assert message.properties == {"own": "1", "TAGS": "overridden"}


def test_plain_message() -> None:
    """A message without options has only WAIT, Java's default; a single key may be a text; a WAIT property of
    the message stays."""
    assert Message(topic="T", body=b"b").all_properties() == {"WAIT": "true"}
    assert Message(topic="T", body=b"b", keys="order 1").keys == ("order 1",)
    assert Message(topic="T", body=b"b", properties={"WAIT": "false"}).all_properties() == {"WAIT": "false"}


def test_message_is_frozen() -> None:
    """Sending does not change a message, which is immutable."""
    message = Message(topic="T", body=b"b")
    with pytest.raises(AttributeError):
        message.topic = "U"  # type: ignore[misc]
    message.all_properties()["x"] = "y"
    assert "x" not in message.all_properties()


@pytest.mark.parametrize("expression", [None, "", "*", " * ", "  ", "\t"])
def test_everything(expression: str | None) -> None:
    """Empty and * match everything."""
    subscription = tag_subscription("T", expression, 5)
    assert subscription == SubscriptionData(topic="T", sub_string="*", sub_version=5)
    assert subscription.takes_all


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", ["TagA"]),
        ("TagA || TagB", ["TagA", "TagB"]),
        ("TagA||TagB", ["TagA", "TagB"]),
        ("  TagA  ||  ||TagB|| ", ["TagA", "TagB"]),
        ("B || A || B", ["B", "A"]),
        ("a|b", ["a|b"]),
        ("中文||😀", ["中文", "😀"]),
        ("a b || c", ["a b", "c"]),
    ],
)
def test_tag_expressions(expression: str, tags: list[str]) -> None:
    """Tags are separated by two bars and trimmed; empty ones are dropped, duplicates removed, and each has
    its Java hash."""
    subscription = tag_subscription("T", expression)
    assert subscription.tags_set == tags
    assert subscription.code_set == [java_hash(tag) for tag in tags]
    assert subscription.sub_string == expression.strip()
    assert subscription.is_tag
    assert not subscription.takes_all


@pytest.mark.parametrize("expression", ["||", " || || ", "||||"])
def test_no_tag_between_the_bars(expression: str) -> None:
    """An expression without tags between the bars is an error that names the correct form."""
    with pytest.raises(ValueError, match="names no tag; write \\* for all"):
        tag_subscription("T", expression)


@pytest.mark.parametrize(
    ("kind", "is_tag", "takes_all"),
    [(None, True, True), ("TAG", True, True), ("SQL92", False, False), ("tag", False, False)],
)
def test_expression_types(kind: str | None, is_tag: bool, takes_all: bool) -> None:
    """An empty expression type means TAG; * with another type is an expression of that type."""
    subscription = SubscriptionData(topic="T", expression_type=kind)
    assert (subscription.is_tag, subscription.takes_all) == (is_tag, takes_all)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"topic": 5}, "topic of a message is a str, not int"),
        ({"topic": None}, "topic of a message is a str, not NoneType"),
        ({"body": "text"}, "body of a message is bytes, not str; encode it first"),
        ({"tag": 5}, "tag of a message is a str, not int"),
        ({"tag": ["a"]}, "tag of a message is a str, not list"),
        ({"keys": 5}, "keys of a message are strings, not int"),
        ({"keys": ["a", 5]}, "keys of a message are strings; 5 is of type int"),
        ({"ordering_key": 7}, "ordering key of a message is a str, not int"),
        ({"delay_level": "3"}, "delay level of a message is an int, not str"),
        ({"priority": "3"}, "priority of a message is an int, not str"),
        ({"properties": {"a": 1}}, "property 'a' of a message is a str, not int; write '1'"),
        ({"properties": {"a": None}}, "property 'a' of a message is a str, not NoneType"),
        ({"properties": {2: "b"}}, "names of properties are strings; 2 is of type int"),
        ({"properties": ["a"]}, "properties of a message are a mapping of strings, not list"),
    ],
)
def test_wrong_types_are_named(wrong: dict[str, Any], why: str) -> None:
    """The error is raised where the message is created and names the wrong part."""
    with pytest.raises(TypeError, match=re.escape(why)):
        Message(**{"topic": "T", "body": b"x"} | wrong)


def test_bodies_may_be_any_buffer() -> None:
    """A body may be any buffer; its bytes are sent."""
    bodies: list[Any] = [b"x", bytearray(b"x"), memoryview(b"x")]
    for body in bodies:
        assert bytes(Message("T", body).body) == b"x"


def test_a_stored_text_is_extended() -> None:
    """Also one of a client that leaves out the last separator; other bytes stay."""
    assert props.extended(b"", {"a": "b"}) == b"a\x01b\x02"
    assert props.extended(b"x\x01\xff\x02", {"a": "b"}) == b"x\x01\xff\x02a\x01b\x02"
    assert props.extended(b"x\x01y", {"a": "b"}) == b"x\x01y\x02a\x01b\x02"
