"""An outbox with processes that are killed: each order's message is delivered once if the order is in the
database, and never otherwise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rmqkit.testing.rocketmq import rocketmq_in_thread
from tests.faults.booking import Booking

#: Milliseconds until a broker asks about a half message, and between two rounds.
SOON = {"transactionTimeOut": 100, "transactionCheckInterval": 100, "transactionCheckMax": 1000}


@pytest.mark.parametrize(
    ("database_url", "face"),
    [("sqlite", "asynchronous"), ("postgresql", "blocking")],
    indirect=["database_url"],
)
def test_a_program_killed_at_every_step(database_url: str, face: str, tmp_path: Path) -> None:
    """Before and after each statement, each commit and each request, of the booking and of the check: the
    messages delivered are those of the orders in the database, each once. Both happen."""
    with rocketmq_in_thread(settings=SOON) as rocketmq:
        booking = Booking(rocketmq.namesrv_text, database_url, face, tmp_path)
        booking.prepare()
        assert booking.kill_at_every_step() > 10
        assert booking.kill_checks_at_every_step() > 2
        booked = booking.booked()
        assert 0 < len(booked) < booking.begun
        assert booking.delivered() == Counter(booked)
