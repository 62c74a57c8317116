"""TCP connects under trio and asyncio, shared by the transports over TCP."""

from __future__ import annotations

import socket

import anyio
from anyio.abc import ByteStream, SocketAttribute

from rmqkit.plugin.address import Address


async def connect_tcp(address: Address, timeout_ms: int) -> ByteStream:
    """A TCP stream with TCP_NODELAY. Raises OSError with the cause, TimeoutError. Cancelled: nothing stays
    open."""
    with anyio.fail_after(timeout_ms / 1000):
        try:
            stream = await anyio.connect_tcp(address.host, address.port)
        except OSError as error:
            raise _reason(error) from error
    try:
        stream.extra(SocketAttribute.raw_socket).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        await anyio.aclose_forcefully(stream)
        raise
    return stream


def _reason(error: OSError) -> OSError:
    """The cause inside the error in which anyio wraps the errors of one or several sockets."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return OSError("; ".join(dict.fromkeys(str(inner) for inner in cause.exceptions)))
    return cause if isinstance(cause, OSError) else error
