"""Times that pass, as people write them: 500ms, 90s, 10m, 2h, 3d."""

from __future__ import annotations

import re
from typing import Final

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def span_ms(text: str) -> int | None:
    """A span in ms; None when the text is none."""
    found = _SPAN.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


__all__ = ["span_ms"]
