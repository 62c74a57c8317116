"""Simulated leases of POP (tests.sim.leases.model lives the histories)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sim.leases.model import live


@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=121))
def test_no_history_loses_a_message_or_delivers_it_wrongly(history: bytes) -> None:
    """Pops with and without order, acknowledgements with old handles, renewals, time, kills and rewritten
    logs, in any sequence: no message is lost, none is delivered after its acknowledgement or during its
    lease, and messages with one key keep their order."""
    assert live(history).finished
