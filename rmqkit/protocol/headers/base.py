"""Root of the typed headers."""

from __future__ import annotations

import msgspec


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Fields travel under their camelCase names; unknown ones are ignored (Java: CommandCustomHeader)."""
