"""Attributes of topics and groups."""

from __future__ import annotations

import pytest

from rmqkit.model.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    AttributeFault,
    Span,
    Text,
    altered,
    parse,
)


def changed(text: str | None, current: dict[str, str] | None = None) -> dict[str, str]:
    return altered(TOPIC_ATTRIBUTES, current, parse(text))


def test_attributes_come_and_go() -> None:
    """`+key=value` sets, `-key` removes, other attributes stay."""
    assert changed(None) == changed("") == {}
    created = changed("+message.type=FIFO,+queue.type=SimpleCQ,+reserve.time=-1")
    assert created == {"message.type": "FIFO", "queue.type": "SimpleCQ", "reserve.time": "-1"}
    assert changed("-reserve.time,+message.type=DELAY", created) == {
        "message.type": "DELAY",
        "queue.type": "SimpleCQ",
    }
    assert changed(None, created) == created


def test_attributes_of_plugins() -> None:
    """A span within bounds, and any text."""
    known = {"keep": Span(least_ms=1_000, most_ms=60_000), "note": Text()}
    assert altered(known, None, parse("+keep=1m,+note=any thing")) == {"keep": "1m", "note": "any thing"}
    for text in ("999ms", "61s", "1 m", "-1s", "x"):
        with pytest.raises(AttributeFault, match="keep is a span from 1000 ms to 60000 ms, such as 10m, not"):
            altered(known, None, {"+keep": text})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type=", r"add/alter attribute format is wrong: \+message.type"),
        ("message.type", "delete attribute format is wrong: message.type"),
        ("+message.type=FIFO,+message.type=DELAY", r"key duplication: \+message.type"),
        ("+a=b", "unsupported key: a"),
        ("+=b", "kv string format wrong."),
        ("x+a=b", "kv string format wrong."),
        ("-message.type", "only add attribute is supported while creating topic. key: message.type"),
        (
            "+message.type=Orderly",
            r"value is not in set: \[DELAY, FIFO, LITE, MIXED, NORMAL, PRIORITY, TRANSACTION, UNSPECIFIED\]",
        ),
        ("+reserve.time=long", 'For input string: "long"'),
        ("+reserve.time=-2", r"value is not in range\(-1, 9223372036854775807\)"),
        ("+queue.type=BatchCQ", "queue.type=BatchCQ is not supported by this broker, only SimpleCQ"),
        (
            "+cleanup.policy=COMPACTION",
            "cleanup.policy=COMPACTION is not supported by this broker, only DELETE",
        ),
    ],
)
def test_what_a_new_topic_may_not_have(text: str, fault: str) -> None:
    """The errors have Java's texts; values without effect here are refused as well."""
    with pytest.raises(AttributeFault, match=fault):
        changed(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("-message.type", "attempt to delete a nonexistent key: message.type"),
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("-queue.type", "attempt to update an unchangeable attribute. key: queue.type"),
        ("+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
    ],
)
def test_what_may_not_be_changed(text: str, fault: str) -> None:
    """These changes of an existing topic are refused."""
    with pytest.raises(AttributeFault, match=fault):
        changed(text, {"queue.type": "SimpleCQ"})


def test_a_sign_of_its_own_is_no_sign() -> None:
    """The first character of a key in a table of attributes is its sign, so an unsigned key is not found."""
    with pytest.raises(AttributeFault, match="wrong format key: essage"):
        altered(TOPIC_ATTRIBUTES, {}, {"message": "FIFO"})


def test_groups_have_no_attributes() -> None:
    """Groups have no attributes, as in RocketMQ 5.3."""
    with pytest.raises(AttributeFault, match=r"unsupported key: message\.type"):
        altered(GROUP_ATTRIBUTES, None, {"+message.type": "FIFO"})
    assert altered(GROUP_ATTRIBUTES, None, {"+priority.factor": "100"}) == {"priority.factor": "100"}
    with pytest.raises(AttributeFault, match=r"value is not in range\(0, 100\)"):
        altered(GROUP_ATTRIBUTES, None, {"+priority.factor": "101"})
