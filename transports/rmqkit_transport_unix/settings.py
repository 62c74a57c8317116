"""Settings of the table [plugins.unix]."""

from __future__ import annotations

from typing import Annotated

import msgspec


class UnixSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`socket_mode` are the permissions of a socket in three octal digits."""

    socket_mode: Annotated[str, msgspec.Meta(pattern="^0?[0-7]{3}$")] = "0600"
