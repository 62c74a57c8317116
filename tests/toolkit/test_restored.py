"""Stored records become messages that can be put again, with all their parts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.protocol import record
from rmqkit.protocol.tags import tags_code
from rmqkit.testing.store import message
from rmqkit.toolkit.restored import real_place, restored

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def stored(sent: PutMessage) -> StoredMessage:
    return record.unpack(record.pack(sent, record.message_size(sent), 7, 900, 5, HOST))


def parked(**properties: str) -> StoredMessage:
    sent = message("internal", 0, b"body")
    sent.set_properties(properties)
    return stored(sent)


@given(
    body=st.binary(min_size=1),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    born_timestamp_ms=st.integers(0, 1 << 60),
    reconsume_times=st.integers(0, 99),
    tag=st.sampled_from(["", "a", "ü"]),
)
def test_what_was_stored_comes_back(
    body: bytes, flag: int, born_timestamp_ms: int, reconsume_times: int, tag: str
) -> None:
    """Packed again at the same place, the restored message is the same record."""
    sent = message("T", 3, body)
    sent.set_properties({"UNIQ_KEY": "K", "TAGS": tag} if tag else {"UNIQ_KEY": "K"})
    sent.flag, sent.born_timestamp_ms, sent.reconsume_times = flag, born_timestamp_ms, reconsume_times
    again = restored(stored(sent), "T", 3)
    assert stored(again) == stored(sent)
    assert msgspec.structs.asdict(again) == msgspec.structs.asdict(sent)


def test_another_place_and_what_hooks_do_not_see() -> None:
    """Topic and queue are the caller's; hidden properties stay in what is stored."""
    again = restored(parked(DELAY="2", TAGS="a"), "U", 9, unseen={"DELAY"}, wait=False)
    assert (again.topic, again.queue_id, again.wait) == ("U", 9, False)
    assert again.properties == {"TAGS": "a"}
    assert again.tags_code == tags_code("a")
    assert stored(again).properties == {"DELAY": "2", "TAGS": "a"}


def test_the_real_place_of_a_parked_message() -> None:
    """Topic and queue come from its properties."""
    assert real_place(parked(REAL_TOPIC="T", REAL_QID="3")) == ("T", 3)


@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        ({}, "the real queue None"),
        ({"REAL_TOPIC": "T"}, "the real queue None"),
        ({"REAL_TOPIC": "T", "REAL_QID": "x"}, "the real queue 'x'"),
        ({"REAL_QID": "0"}, "the real topic None"),
        ({"REAL_TOPIC": "a topic", "REAL_QID": "0"}, "the real topic 'a topic'"),
        ({"REAL_TOPIC": names.HALF_TOPIC, "REAL_QID": "0"}, "the real topic 'RMQ_SYS_TRANS_HALF_TOPIC'"),
    ],
)
def test_a_message_without_a_legal_place(properties: dict[str, str], fault: str) -> None:
    """It is an error of the record, so that its owner sets it aside."""
    with pytest.raises(DecodeError, match=fault):
        real_place(parked(**properties))
