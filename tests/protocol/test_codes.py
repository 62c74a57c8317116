"""Version numbers of clients and brokers."""

from __future__ import annotations

import pytest

from rmqkit.protocol.codes import CLIENT_VERSION, VERSION, version_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "3.x"),
        (213, "4.0.0"),
        (317, "4.5.2"),
        (409, "4.9.8"),
        (412, "5.0.0-SNAPSHOT"),
        (413, "5.0.0"),
        (CLIENT_VERSION, "5.3.1"),
        (VERSION, "5.3.3"),
        (99_999, "5.9.9"),
    ],
)
def test_versions_by_number(number: int, text: str) -> None:
    """Java's numbers are read from 4.0.0 on; a number beyond its table is the last one, as in Java."""
    assert version_text(number) == text
