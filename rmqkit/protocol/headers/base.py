"""Root of the typed headers."""

from __future__ import annotations

import msgspec


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Fields have their camelCase names on the wire; unknown ones are ignored (Java: CommandCustomHeader)."""
