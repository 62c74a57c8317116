"""Java's integer widths as types: typed decoding refuses what Java could not hold, so that packing it
later cannot fail."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

I32 = Annotated[int, Meta(ge=-0x80000000, le=0x7FFFFFFF)]
I64 = Annotated[int, Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
