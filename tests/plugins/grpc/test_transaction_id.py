"""The transaction id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.protocol.headers import SendMessageResponseHeader
from rmqkit.protocol.message_id import offset_message_id, pack_host
from rmqkit_grpc import transaction_id
from rmqkit_grpc.statuses import Refusal
from rmqkit_grpc.transaction_id import Transaction

OFFSETS = st.integers(0, 2**63 - 1)


@given(OFFSETS, OFFSETS, st.text(max_size=60), st.text(min_size=1, max_size=255))
def test_a_transaction_comes_back(queue_offset: int, log_offset: int, broker: str, message_id: str) -> None:
    """Whatever the name of the broker and the id of the message are."""
    made = Transaction(queue_offset, log_offset, broker, message_id)
    assert transaction_id.parse(transaction_id.text_of(made)) == made


def test_the_id_of_a_send() -> None:
    """It has the places of the half message from the broker's answer."""
    header = SendMessageResponseHeader(
        msg_id=offset_message_id(pack_host("127.0.0.1", 10911), 4_711), queue_id=0, queue_offset=3
    )
    text = transaction_id.of_send("broker-a", "01AB", header)
    assert transaction_id.parse(text) == Transaction(3, 4_711, "broker-a", "01AB")


@pytest.mark.parametrize(
    "text", ["", "01AB", "1-2--", "1-2-a", "x-1--a", "1-x--a", "1-2-6-a", "-1-2--a", f"1-{'f' * 17}--a"]
)
def test_other_texts_are_refused(text: str) -> None:
    """The answer says which id is wanted."""
    with pytest.raises(Refusal, match="not a transaction id"):
        transaction_id.parse(text)
