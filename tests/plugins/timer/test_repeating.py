"""Repeating messages: how they begin, what is put when they have waited, and when they end."""

from __future__ import annotations

import pytest

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.protocol import record
from rmqkit_timer import repeating as module
from rmqkit_timer.messages import delivered
from rmqkit_timer.repeating import Firing, Repeating
from rmqkit_timer.schedules import HOP_MS, MOST_MS

#: A whole hour, so that hops are easy to see.
NOW_MS = 1_700_002_800_000
PRECISION_MS = 1_000


def message(rule: str = "1m", **properties: str) -> PutMessage:
    known = {"UNIQ_KEY": "id", "KEYS": "k", "RMQKIT_REPEAT": rule} | properties
    return PutMessage("T", 3, b"body", known, props.encode(known).encode(), flag=7)


def begun(repeating: Repeating, rule: str = "1m", **properties: str) -> StoredMessage:
    """A message as it waits for its first time."""
    given = message(rule, **properties)
    due_ms = repeating.begin(given, NOW_MS)
    place = {"REAL_TOPIC": "T", "REAL_QID": "3", "TIMER_OUT_MS": str((due_ms - 1) // 1000 * 1000)}
    given.set_properties(given.properties | place)
    given.topic, given.queue_id = names.TIMER_TOPIC, 0
    return as_stored(given)


def as_stored(given: PutMessage) -> StoredMessage:
    return record.unpack(record.pack(given, record.message_size(given), 0, 0, 0, bytes(8)))


def fired(repeating: Repeating, stored: StoredMessage, now_ms: int) -> Firing:
    firing = repeating.fire(stored, delivered(stored, NOW_MS, now_ms), PRECISION_MS, now_ms)
    if firing.messages:
        repeating.fired(firing, now_ms)
    return firing


def due_ms(stored: StoredMessage) -> int:
    return int(stored.properties["TIMER_DELIVER_MS"])


@pytest.mark.parametrize(
    ("rule", "properties", "first_ms", "stop_ms"),
    [
        ("1m", {}, NOW_MS + 60_000, NOW_MS + 60_000),
        ("1m", {"TIMER_DELAY_SEC": "5"}, NOW_MS + 5_000, NOW_MS + 5_000),
        ("1m", {"TIMER_DELAY_MS": "5500"}, NOW_MS + 5_500, NOW_MS + 5_500),
        ("1m", {"TIMER_DELIVER_MS": str(NOW_MS + 90_000)}, NOW_MS + 90_000, NOW_MS + 90_000),
        ("7d", {}, NOW_MS + 604_800_000, NOW_MS + HOP_MS),
        ("1m", {"TIMER_DELAY_SEC": "7200"}, NOW_MS + 7_200_000, NOW_MS + HOP_MS),
        ("*/5 * * * *", {}, NOW_MS, NOW_MS + 300_000),
        ("*/5 * * * *", {"TIMER_DELAY_SEC": "1800"}, NOW_MS + 1_800_000, NOW_MS + 1_800_000),
    ],
)
def test_the_first_time(rule: str, properties: dict[str, str], first_ms: int, stop_ms: int) -> None:
    """It is an interval from now, the next one of a cron expression, or the one that the sender asks for;
    until then the message waits in hops. Its own properties stay."""
    given = message(rule, **properties)
    assert Repeating().begin(given, NOW_MS) == stop_ms
    assert given.properties["RMQKIT_REPEAT_FROM"] == str(first_ms)
    assert given.properties["TIMER_DELIVER_MS"] == str(stop_ms)
    assert given.properties["RMQKIT_REPEAT_NUMBER"] == "0"
    assert (given.properties["UNIQ_KEY"], given.properties["KEYS"]) == ("id", "k")
    assert {"TIMER_DELAY_SEC", "TIMER_DELAY_MS"}.isdisjoint(given.properties)
    assert props.decode_bytes(given.properties_bytes) == given.properties


@pytest.mark.parametrize(
    ("rule", "properties", "why"),
    [
        ("often", {}, "neither an interval"),
        ("1ms", {}, "not between 1 s and 366 days"),
        ("61 * * * *", {}, "Bad minute"),
        ("1m", {"RMQKIT_REPEAT_TIMES": "0"}, "RMQKIT_REPEAT_TIMES is 0"),
        ("1m", {"RMQKIT_REPEAT_TIMES": "-1"}, "RMQKIT_REPEAT_TIMES is -1"),
        ("1m", {"RMQKIT_REPEAT_TIMES": "1000001"}, "may be 1 to 1000000"),
        ("1m", {"RMQKIT_REPEAT_TIMES": "many"}, "the property RMQKIT_REPEAT_TIMES"),
        ("1m", {"TIMER_DELAY_SEC": "soon"}, "the property TIMER_DELAY_SEC"),
        ("1m", {"TIMER_DELAY_SEC": "-1"}, "the first time is -1000 ms ahead"),
        ("1m", {"TIMER_DELIVER_MS": str(NOW_MS - 1)}, "the first time is -1 ms ahead"),
        ("1m", {"TIMER_DELIVER_MS": str(NOW_MS + MOST_MS + 1)}, "ms ahead; it may be 0 to"),
        ("1m", {"TIMER_DELIVER_MS": "9223372036854775807"}, "ms ahead; it may be 0 to"),
    ],
)
def test_what_does_not_begin(rule: str, properties: dict[str, str], why: str) -> None:
    """The error names the fault, and the message stays as it is."""
    given, before = message(rule, **properties), message(rule, **properties)
    with pytest.raises(DecodeError, match=why):
        Repeating().begin(given, NOW_MS)
    assert given == before


def test_a_cron_expression_that_never_comes() -> None:
    """A day that no month has is not waited for."""
    with pytest.raises(DecodeError, match="no time in the next fifty years"):
        Repeating().begin(message("0 0 */30 2 MON#2"), NOW_MS)


def test_each_delivery_is_the_same_message_again() -> None:
    """Body, flag, id, keys and the rest are those of the first; the number counts. With each delivery the
    message is put to wait for the next time, with nothing of the wait before."""
    repeating = Repeating()
    stored = begun(repeating)
    for number in range(1, 4):
        now_ms = NOW_MS + number * 60_000 + 400
        delivery, waiting = fired(repeating, stored, now_ms).messages
        assert (delivery.topic, delivery.queue_id, delivery.body, delivery.flag) == ("T", 3, b"body", 7)
        seen = props.decode_bytes(delivery.properties_bytes)
        assert (seen["UNIQ_KEY"], seen["KEYS"], seen["RMQKIT_REPEAT_NUMBER"]) == ("id", "k", str(number))
        assert props.TIMER_DELIVER_MS not in delivery.properties
        assert (waiting.topic, waiting.queue_id, waiting.body, waiting.flag) == (
            names.TIMER_TOPIC,
            0,
            b"body",
            7,
        )
        stored = as_stored(waiting)
        assert due_ms(stored) == NOW_MS + (number + 1) * 60_000
        assert stored.properties["TIMER_OUT_MS"] == str(due_ms(stored) - 1_000)
        assert {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}.isdisjoint(stored.properties)


def test_a_long_wait_is_made_of_hops() -> None:
    """At the end of a hop nothing is delivered, and the message waits on."""
    repeating = Repeating()
    stored = begun(repeating, "3h")
    for hop in (1, 2):
        (waiting,) = fired(repeating, stored, NOW_MS + hop * HOP_MS).messages
        stored = as_stored(waiting)
        assert due_ms(stored) == NOW_MS + (hop + 1) * HOP_MS
        assert stored.properties["RMQKIT_REPEAT_NUMBER"] == "0"
    delivery, waiting = fired(repeating, stored, NOW_MS + 3 * HOP_MS).messages
    assert delivery.topic == "T"
    assert due_ms(as_stored(waiting)) == NOW_MS + 4 * HOP_MS


def test_one_delivery_makes_up_for_missed_ones() -> None:
    """After a time without a broker the next delivery is in the future."""
    repeating = Repeating()
    delivery, waiting = fired(repeating, begun(repeating), NOW_MS + 600_500).messages
    assert delivery.topic == "T"
    assert due_ms(as_stored(waiting)) == NOW_MS + 660_000


def test_a_delivery_that_was_missed_at_a_hop() -> None:
    """A hop whose end comes late, behind the time of a delivery, makes up for it."""
    repeating = Repeating()
    stored = begun(repeating, "90m")
    delivery, waiting = fired(repeating, stored, NOW_MS + 90 * 60_000).messages
    assert (delivery.topic, delivery.properties["RMQKIT_REPEAT_NUMBER"]) == ("T", "1")
    assert due_ms(as_stored(waiting)) == NOW_MS + 2 * HOP_MS


@pytest.mark.parametrize("most", [1, 2])
def test_the_last_delivery(most: int) -> None:
    """After the number of deliveries that the sender wants nothing waits any more."""
    repeating = Repeating()
    stored = begun(repeating, RMQKIT_REPEAT_TIMES=str(most))
    for number in range(1, most):
        stored = as_stored(fired(repeating, stored, NOW_MS + number * 60_000).messages[1])
    (delivery,) = fired(repeating, stored, NOW_MS + most * 60_000).messages
    assert (delivery.topic, delivery.properties["RMQKIT_REPEAT_NUMBER"]) == ("T", str(most))


def test_a_copy_is_not_delivered() -> None:
    """After a crash a message may wait twice for one time. It is delivered once there, and waits once from
    then on; in a process that starts anew, too."""
    repeating = Repeating()
    stored = begun(repeating)
    for found in (repeating, Repeating()):
        _, waiting = fired(found, stored, NOW_MS + 60_000).messages
        assert fired(found, stored, NOW_MS + 60_000).messages == []
        assert len(fired(found, as_stored(waiting), NOW_MS + 120_000).messages) == 2


def test_what_could_not_be_put_is_put_again() -> None:
    """A firing that was refused counts for nothing."""
    repeating = Repeating()
    stored = begun(repeating)
    for _ in range(2):
        firing = repeating.fire(stored, delivered(stored, NOW_MS, NOW_MS), PRECISION_MS, NOW_MS + 60_000)
        assert len(firing.messages) == 2


def test_what_was_recalled_ends() -> None:
    """Nothing of it is delivered up to the time of the recall's records, whose slots delete what comes later;
    another message is not touched."""
    repeating = Repeating()
    stored = begun(repeating)
    repeating.end("T+id", NOW_MS + 60_000, NOW_MS)
    assert fired(repeating, stored, NOW_MS + 60_000).messages == []
    other = begun(repeating, UNIQ_KEY="other")
    assert len(fired(repeating, other, NOW_MS + 60_000).messages) == 2
    assert len(fired(Repeating(), stored, NOW_MS + 60_000).messages) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"RMQKIT_REPEAT": "never"},
        {"RMQKIT_REPEAT_FROM": "x"},
        {"RMQKIT_REPEAT_FROM": ""},
        {"RMQKIT_REPEAT_NUMBER": ""},
        {"RMQKIT_REPEAT_NUMBER": "x"},
        {"TIMER_DELIVER_MS": ""},
        {"TIMER_DELIVER_MS": "9" * 30},
    ],
)
def test_a_record_that_no_broker_has_made(changes: dict[str, str]) -> None:
    """It is refused, so that it is set aside."""
    repeating = Repeating()
    stored = begun(repeating)
    given = PutMessage(stored.topic, 0, stored.body, {}, b"")
    given.set_properties(stored.properties | changes)
    with pytest.raises(DecodeError):
        fired(repeating, as_stored(given), NOW_MS + 60_000)


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message too many is refused; those that were recalled are forgotten after a while, and those that
    go on, or have ended, are not in the way."""
    monkeypatch.setattr(module, "MAX_REPEATING", 2)
    repeating = Repeating()
    one, two = begun(repeating, UNIQ_KEY="1"), begun(repeating, UNIQ_KEY="2", RMQKIT_REPEAT_TIMES="1")
    with pytest.raises(DecodeError, match="the broker has 2 repeating messages already"):
        begun(repeating, UNIQ_KEY="3")
    begun(repeating, UNIQ_KEY="1")
    fired(repeating, two, NOW_MS + 60_000)
    begun(repeating, UNIQ_KEY="3")
    assert len(fired(repeating, one, NOW_MS + 60_000).messages) == 2
    late_ms = NOW_MS + 3 * HOP_MS
    assert Repeating.begin(repeating, message(UNIQ_KEY="4"), late_ms) == late_ms + 60_000
    for number in range(5):
        repeating.end(f"T+{number}", late_ms + number, late_ms)
    repeating.end("T+9", late_ms, late_ms + 3 * HOP_MS)
