"""Settings of the table [plugins.tcp]."""

from __future__ import annotations

import msgspec

#: The table.
PLUGIN = "tcp"


class TcpSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`reuse_port`: other processes of the same user may listen at the same ports, and the system shares new
    connections among them. Not for brokers and name servers, of which each has its own state."""

    reuse_port: bool = False
