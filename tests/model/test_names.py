"""Names: legal, derived, reserved. A legal name can be used as a directory name."""

from __future__ import annotations

import string
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.model import names

LEGAL = string.ascii_letters + string.digits + "_-%|"
PROPERTY = settings(max_examples=200, deadline=None, database=None)
PATHS = [
    "../x",
    "..",
    ".",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "C:x",
    "a\0b",
    "\0",
    "a.b",
    "~",
    "a/../b",
    "%2e%2e/x",
    "a\n",
    "\na",
    "a b",
    " a",
    "$HOME",
    "*",
]
NO_NAMES = [
    "tópico",
    "主题",
    "а",
    "a+b",
    "a@b",
    "a#b",
    "{}",
    "a,b",
    "a;b",
    "a:b",
    "'a'",
    "a\x7f",
    "a\u200b",
    "ａ",
]


@pytest.mark.parametrize(
    "name", ["TopicTest", "a", "A-b_9", "%RETRY%group", "a|b", "%", "TBW102", "%DLQ%x", "-", "a" * 127]
)
def test_legal_topics(name: str) -> None:
    """Legal are letters, digits, %, |, _ and -, at most 127."""
    assert names.topic_fault(name) is None


@pytest.mark.parametrize("name", PATHS + NO_NAMES)
def test_illegal_characters(name: str) -> None:
    """Path parts, control characters, spaces and non-ASCII letters are refused, and the error names the
    fault."""
    for fault in (names.topic_fault(name), names.group_fault(name)):
        assert fault is not None
        assert "characters besides" in fault


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u3000"])
def test_blank(name: str) -> None:
    """A blank name is reported as blank."""
    assert names.topic_fault(name) == "the topic is blank"
    assert names.group_fault(name) == "the group is blank"


@PROPERTY
@given(st.text(max_size=20) | st.text(LEGAL + "./\\\0\n ", max_size=20))
def test_legal_is_exactly_the_alphabet(name: str) -> None:
    """A name is legal exactly if all its characters are, and is then a single path component."""
    legal = bool(name) and all(char in LEGAL for char in name)
    assert (names.topic_fault(name) is None) is legal
    assert (names.group_fault(name) is None) is legal
    if legal:
        assert PurePosixPath("root", name).parent == PurePosixPath("root")
        assert PurePosixPath(name).parts == (name,)
        assert name not in (".", "..")


@pytest.mark.parametrize(
    ("prefix", "limit"),
    [
        ("", 127),
        (names.RETRY_PREFIX, 255),
        (names.DLQ_PREFIX, 255),
        ("%retry%", 127),
        ("x%RETRY%", 127),
        ("rmq_sys_", 127),
    ],
)
def test_topic_length(prefix: str, limit: int) -> None:
    """A topic may have 127 characters, retry and dead-letter topics 255; the error for one more contains both
    numbers."""
    assert names.topic_fault(prefix.ljust(limit, "t")) is None
    fault = names.topic_fault(prefix.ljust(limit + 1, "t"))
    assert fault is not None
    assert f"{limit + 1} characters, at most {limit}" in fault


def test_group_length() -> None:
    """A group may have 120 characters, so that its derived topics are legal as well."""
    longest = "g" * 120
    assert names.group_fault(longest) is None
    assert "121 characters, at most 120" in (names.group_fault("g" * 121) or "")
    for topic in (names.retry_topic(longest), names.dlq_topic(longest)):
        assert names.topic_fault(topic) is None


def test_derived_names() -> None:
    """Retry, dead-letter and reply topics are derived as in RocketMQ."""
    assert names.retry_topic("CG") == "%RETRY%CG"
    assert names.dlq_topic("CG") == "%DLQ%CG"
    assert names.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"


def test_reserved_topics() -> None:
    """System topics, and those to which clients may not send, are the sheet's lists (6.3), besides the topics
    of what is set aside and of what waits for a time."""
    closed = {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
    open_ones = {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}
    assert closed | {names.SET_ASIDE_TOPIC, names.TIMER_TOPIC} == names.NO_SEND_TOPICS
    assert closed | open_ones == names.SYSTEM_TOPICS
    assert all(
        names.is_system_topic(topic) and names.topic_fault(topic) is None for topic in closed | open_ones
    )
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert names.is_system_topic(names.SET_ASIDE_TOPIC)
    assert not any(map(names.is_system_topic, ("TopicTest", "%RETRY%g", "xrmq_sys_", "tbw102", "")))


def test_the_topics_of_pop_consumption() -> None:
    """Retry topics of both versions are legal, others may not have the sign of the second; the topic with the
    leases is legal whatever the cluster's name, and takes no sends."""
    assert names.pop_retry_topic("T", "g") == "%RETRY%g_T"
    assert names.pop_retry_topic("T", "g", v2=True) == "%RETRY%g+T"
    assert names.topic_fault("%RETRY%g+T") is None
    for name in ("a+b", "%RETRY%g+T+U", "%DLQ%g+T"):
        assert names.topic_fault(name)
    assert names.revive_topic("DefaultCluster") == "rmq_sys_REVIVE_LOG_DefaultCluster"
    assert names.topic_fault(names.revive_topic("c" * 120)) is None
    assert names.takes_no_sends(names.revive_topic("any"))
    assert all(map(names.takes_no_sends, names.NO_SEND_TOPICS))
    assert not any(map(names.takes_no_sends, ("TopicTest", "%RETRY%g_T", "TBW102", "rmq_sys_REVIVE", "")))


def test_preset_groups_are_legal() -> None:
    """The groups that exist on every broker have legal names."""
    assert all(names.group_fault(group) is None for group in names.PRESET_GROUPS)


@pytest.mark.parametrize(
    ("name", "namespace", "bare"),
    [
        ("Orders", "", "Orders"),
        ("ns%Orders", "ns", "Orders"),
        ("%RETRY%ns%group", "ns", "%RETRY%group"),
        ("%DLQ%ns%group", "ns", "%DLQ%group"),
        ("%RETRY%group", "", "%RETRY%group"),
        ("%Orders", "", "%Orders"),
        ("RMQ_SYS_TRACE_TOPIC", "", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_a%b", "", "rmq_sys_a%b"),
        ("CID_RMQ_SYS_a%b", "", "CID_RMQ_SYS_a%b"),
        ("", "", ""),
    ],
)
def test_namespaces(name: str, namespace: str, bare: str) -> None:
    """The namespace is `ns%name`, after the prefix of a retry or dead-letter topic; system names have
    none."""
    assert names.namespace_of(name) == namespace
    assert names.without_namespace(name) == bare


def test_system_groups() -> None:
    """System groups are recognised by their prefix, case-insensitively, as in Java."""
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert names.is_system_group("cid_rmq_sys_x")
    assert not names.is_system_group("orders")
