"""The address of a broker in the form used by records."""

from __future__ import annotations

import socket

from rmqkit.config.schema import Config
from rmqkit.errors import ConfigError, DecodeError
from rmqkit.protocol.message_id import pack_host


def store_host(config: Config) -> bytes:
    """Packed host and port that clients use (8 or 20 bytes), which stores write into records and message ids.
    A name is resolved once.

    Raises ConfigError when it has no address.
    """
    host = config.advertised_host
    try:
        return pack_host(host, config.listen_port)
    except DecodeError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(
            f"the host {host!r} for clients has no address: {error}; set brokerIP1 to an IP address"
        ) from error
    return pack_host(str(found[0][4][0]), config.listen_port)
