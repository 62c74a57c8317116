"""Times that pass, as people write them."""

from __future__ import annotations

import pytest

from rmqkit.model.spans import span_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0s", 0), ("500ms", 500), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("3d", 259_200_000)],
)
def test_units(text: str, ms: int) -> None:
    assert span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "1.5h", "5w", "٣s", "5s ", "9" * 13 + "s"])
def test_what_is_none(text: str) -> None:
    assert span_ms(text) is None
