"""What functions of the application say about transactions."""

from __future__ import annotations

import pytest

from rmqkit.client import ClientError, TransactionState
from rmqkit.client.producing.transaction_state import state_of


def test_verdicts() -> None:
    """True commits, False rolls back, None is unknown; a number or a text is a mistake, also 1 and 0, which a
    count of rows could be."""
    assert state_of(True) is TransactionState.COMMIT
    assert state_of(False) is TransactionState.ROLLBACK
    assert state_of(None) is TransactionState.UNKNOWN
    assert all(state_of(state) is state for state in TransactionState)
    for wrong in (1, 0, "COMMIT", [], object()):
        with pytest.raises(ClientError, match=f"None \\(unknown\\).*not {type(wrong).__name__}"):
            state_of(wrong)
