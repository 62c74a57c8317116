"""The address a store writes into its records."""

from __future__ import annotations

import socket

from rmqkit.config import Config
from rmqkit.errors import ConfigError, DecodeError
from rmqkit.protocol.message_id import pack_host


def store_host(config: Config) -> bytes:
    """The advertised host and port, 8 or 20 bytes; a name is resolved once. Raises ConfigError when it cannot be."""
    host = config.advertised_host
    try:
        return pack_host(host, config.listen_port)
    except DecodeError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"the host {host!r} that clients are told cannot be resolved: {error}") from error
    return pack_host(str(found[0][4][0]), config.listen_port)
