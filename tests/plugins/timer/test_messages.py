"""What is delivered for a record of the timer topic."""

from __future__ import annotations

import pytest

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.protocol.record import message_size, pack, unpack
from rmqkit_timer import messages
from tests.plugins.timer.kit import parked, timed


def stored(message: PutMessage) -> StoredMessage:
    return unpack(pack(message, message_size(message), 3, 4_096, 1_000, b"\x7f\0\0\1\0\0\x2a\x9f"))


def test_a_delivered_message_keeps_what_was_stored() -> None:
    """All bytes of its properties, and the times of its way; put hooks see no time that they would act on."""
    waits = parked(b"body", 5_000, TAGS="A", TIMER_DELAY_SEC="5", DELAY="0")
    waits.properties_bytes += b"odd\x01\xff\x02"
    found = messages.delivered(stored(waits), 1_000, 6_000)
    assert (found.topic, found.queue_id, found.body, found.wait) == ("T", 0, b"body", False)
    assert found.properties_bytes == (
        waits.properties_bytes + b"TIMER_ENQUEUE_MS\x011000\x02TIMER_DEQUEUE_MS\x016000\x02"
    )
    assert not {*props.TIMER_INPUTS, props.DELAY} & set(found.properties)
    assert found.properties[props.TIMER_DEQUEUE_MS] == "6000"
    assert found.tags_code == 65


@pytest.mark.parametrize(("times", "then"), [("", "1"), ("1", "2"), ("x", "1")])
def test_a_message_that_waits_on_counts_its_times(times: str, then: str) -> None:
    """It goes back to the topic of timers."""
    found = messages.rolled(stored(parked(b"x", 5_000, TIMER_ROLL_TIMES=times)), 1_000, 6_000)
    assert (found.topic, found.queue_id) == (names.TIMER_TOPIC, 0)
    assert found.properties[props.TIMER_ROLL_TIMES] == then
    assert found.properties_bytes.count(b"TIMER_ROLL_TIMES") == 1


def test_a_record_of_another_topic_is_no_timer() -> None:
    """As one that took the place of a lost one."""
    other = stored(timed(b"x", {"REAL_TOPIC": "U", "REAL_QID": "0"}))
    for make in (messages.delivered, messages.rolled):
        with pytest.raises(DecodeError, match="its topic is 'T'"):
            make(other, 1_000, 6_000)


@pytest.mark.parametrize(
    ("text", "key"), [(None, None), ("T+K", "T+K"), ("K", "T+K"), ("U+K", "T+U+K"), ("TT+K", "T+TT+K")]
)
def test_a_record_deletes_messages_of_its_own_topic(text: str | None, key: str | None) -> None:
    """Whatever it names."""
    properties = {} if text is None else {props.TIMER_DEL_UNIQKEY: text}
    assert messages.delete_key(properties, "T") == key
    assert messages.victim_key({props.UNIQ_KEY: "K"}, "T") == "T+K"


@pytest.mark.parametrize("text", [None, "", "x", "1.0"])
def test_a_record_without_a_slot(text: str | None) -> None:
    """It is not guessed."""
    with pytest.raises(DecodeError, match=r"TIMER_OUT_MS"):
        messages.due_ms({} if text is None else {props.TIMER_OUT_MS: text})
