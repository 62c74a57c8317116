"""The table [plugins.grpc]."""

from __future__ import annotations

import importlib.util

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.plugin.address import Address

#: Where `rmqkit serve` listens when nobody says anything else: RocketMQ's port of its proxy.
DEFAULT_ADDRESS = "127.0.0.1:8081"
AUTO, NONE = "auto", "none"


class GrpcSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the gRPC door.

    listen  where the broker listens for gRPC besides its own port: HOST:PORT; `auto` for 127.0.0.1:8081, or a
            free port where that is taken; `none`
    """

    listen: str = NONE

    @property
    def address(self) -> Address | None:
        """The address to listen on; None without one. Raises ConfigError."""
        if self.listen == NONE:
            return None
        try:
            return Address.parse(DEFAULT_ADDRESS if self.listen == AUTO else self.listen)
        except ValueError as error:
            raise ConfigError(f"plugins.grpc.listen: {error}") from error


def is_installed() -> bool:
    """Whether the library of the extra `grpc` is there."""
    try:
        return importlib.util.find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        return False


__all__ = ["AUTO", "DEFAULT_ADDRESS", "NONE", "GrpcSettings", "is_installed"]
