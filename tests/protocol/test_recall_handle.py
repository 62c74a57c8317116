"""The handle by which a message that waits is recalled."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit.model.message import PutMessage
from rmqkit.protocol.recall_handle import (
    MAX_HANDLE_LENGTH,
    RecallHandle,
    decode_handle,
    handle_of,
    repeats_of,
    repeats_word,
)

#: A handle of Apache's broker, from the sheet.
APACHES = "djEgVCBiLWEgMTcwMDAwMDAwMDAwMSAwQTAwMDAwMTEwRTEwMA=="
ITS_PARTS = RecallHandle("T", "b-a", 1_700_000_000_001, "0A00000110E100")
WORDS = st.text(st.characters(blacklist_characters=" ", codec="utf-8"), min_size=1)


def encoded(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return base64.urlsafe_b64encode(data).decode()


def test_apaches_handle() -> None:
    """It is read and written as in Java, with padding and without."""
    assert decode_handle(APACHES) == decode_handle(APACHES.rstrip("=")) == ITS_PARTS
    assert ITS_PARTS.encode() == APACHES


@settings(max_examples=200, deadline=None, database=None)
@given(WORDS, WORDS, st.integers(0, 2**63 - 1), WORDS, st.none() | WORDS)
def test_round_trip(topic: str, broker: str, time_ms: int, message_id: str, repeats: str | None) -> None:
    """Whatever has no space is read as it was written."""
    handle = RecallHandle(topic, broker, time_ms, message_id, repeats or "")
    text = handle.encode()
    assert text is not None
    if len(text) <= MAX_HANDLE_LENGTH:
        assert decode_handle(text) == handle


@pytest.mark.parametrize(
    "handle",
    [
        RecallHandle("T", "broker a", 1, "id"),
        RecallHandle("T", "b", 1, "an id"),
        RecallHandle("T", "b", 1, ""),
        RecallHandle("T", "b", 1, "id", "0 9 * * *"),
    ],
)
def test_what_could_not_be_read_back_has_no_handle(handle: RecallHandle) -> None:
    """A space would separate the parts at a wrong place."""
    assert handle.encode() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "*",
        "a",
        APACHES + "=",
        APACHES[:-1],
        APACHES + "A",
        APACHES.replace("j", "+", 1),
        APACHES.replace("j", "/", 1),
        APACHES + "\n",
        "\u0661" * 4,
        encoded("v1 T b-a 1700000000001"),
        encoded("v1 T b-a 1700000000001 "),
        encoded("v1 T b-a 1700000000001   "),
        encoded("v2 T b-a 1700000000001 id"),
        encoded(" v1 T b-a 1700000000001 id"),
        encoded(b"\xff\xfe"),
        encoded("v1 T b-a 1 " + "x" * MAX_HANDLE_LENGTH),
    ],
)
def test_what_is_no_handle(text: str) -> None:
    """The text of the error is Java's."""
    with pytest.raises(DecodeError, match="recall handle is invalid"):
        decode_handle(text)


@pytest.mark.parametrize("number", ["x", "-1", "+1", "1.5", "", "1" * 20, "\u0661\u0662"])
def test_a_time_that_is_no_number(number: str) -> None:
    """It counts as a time that is over, as in Java."""
    assert decode_handle(encoded(f"v1 T b {number} id")).deliver_ms == -1


@settings(max_examples=300, deadline=None, database=None)
@given(st.text() | st.binary().map(encoded) | st.text().map(lambda text: encoded("v1 " + text)))
def test_anything_is_a_handle_or_refused(text: str) -> None:
    """Nothing but DecodeError is raised."""
    try:
        handle = decode_handle(text)
    except DecodeError:
        return
    assert handle.topic is not None


@pytest.mark.parametrize(
    "rule", ["30s", "0 9 * * 1-5", "America/New_York */5 * * * *", "Etc/GMT+5 0 0 1 1 *"]
)
def test_a_schedule_is_one_word(rule: str) -> None:
    """The rule of a repeating message has no space in a handle, and is read back."""
    word = repeats_word(rule, "1700000000123")
    assert " " not in word
    assert repeats_of(word) == (rule, "1700000000123")


def waiting(**properties: str) -> PutMessage:
    known = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "1700000000000", "UNIQ_KEY": "id"}
    return PutMessage("rmq_sys_wheel_timer", 0, b"x", known | properties, b"")


def test_the_handle_of_a_message() -> None:
    """A message that waits for its time has one, which names 1 ms behind its slot; others have none."""
    assert handle_of(waiting(), "b-a") == RecallHandle("T", "b-a", 1_700_000_000_001, "id")
    repeating = handle_of(waiting(RMQKIT_REPEAT="0 9 * * *", RMQKIT_REPEAT_FROM="7"), "b-a")
    assert repeating is not None
    assert repeating.repeats == "0~9~*~*~*@7"
    assert handle_of(waiting(REAL_TOPIC="%RETRY%g"), "b-a") is None
    assert handle_of(waiting(TIMER_OUT_MS="soon"), "b-a") is None
    delivered = waiting()
    delivered.topic = "T"
    assert handle_of(delivered, "b-a") is None
