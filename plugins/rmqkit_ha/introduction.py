"""How a slave says who it is, before everything else, where brokers sign what they send to others. Apache's
brokers know none of it.

slave to master   8 bytes MAGIC, i32 0
master to slave   8 bytes MAGIC, i32 16, then 16 random bytes
slave to master   8 bytes MAGIC, i32 size, then as many bytes of JSON: the header fields of a signed request,
with
                  the random bytes in the field `nonce`

MAGIC is a negative i64, and so no log offset. An answer that was heard is of no use for another connection.
"""

from __future__ import annotations

import secrets
import struct

import msgspec
import trio
from anyio.abc import ByteStream

from rmqkit.errors import ProtocolError
from rmqkit.plugin.registrations import Registrations
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit_ha.limits import MAX_INTRODUCTION_BYTES

MAGIC = b"\x8drmqkit\x02"
_HEAD = struct.Struct(">8si")
_NONCE_BYTES = 16
_NONCE = "nonce"
_READ_BYTES = 64 * 1024


def packed(body: bytes = b"") -> bytes:
    return _HEAD.pack(MAGIC, len(body)) + body


class _Parts:
    """Reads the parts of an introduction; `rest` is what has arrived behind them."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.rest = b""

    async def _more(self) -> None:
        data = await self._stream.receive_some(_READ_BYTES)
        if not data:
            raise trio.BrokenResourceError("the slave closed it")
        self.rest += bytes(data)

    async def begins(self) -> bool:
        """Whether an introduction begins. Everything that a slave may say first is as long as MAGIC."""
        while len(self.rest) < len(MAGIC):
            await self._more()
        return self.rest.startswith(MAGIC)

    async def take(self) -> bytes:
        """The body of the next part. Raises ProtocolError."""
        while len(self.rest) < _HEAD.size:
            await self._more()
        end = _HEAD.size + size_of(self.rest[: _HEAD.size])
        while len(self.rest) < end:
            await self._more()
        body, self.rest = self.rest[_HEAD.size : end], self.rest[end:]
        return body


def size_of(head: bytes) -> int:
    """The size that a head announces. Raises ProtocolError."""
    magic, size = _HEAD.unpack(head)
    if magic != MAGIC or not 0 <= size <= MAX_INTRODUCTION_BYTES:
        raise ProtocolError("it does not introduce itself as brokers do")
    return int(size)


async def introduced(stream: trio.abc.Stream) -> tuple[Command | None, bytes]:
    """The signed request of a slave that introduces itself, None for one that does not; and the bytes that
    came behind it. Raises ProtocolError, trio's stream errors."""
    parts = _Parts(stream)
    if not await parts.begins():
        return None, parts.rest
    await parts.take()
    nonce = secrets.token_bytes(_NONCE_BYTES)
    await stream.send_all(packed(nonce))
    try:
        fields = msgspec.json.decode(await parts.take(), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ProtocolError(f"its introduction cannot be read: {error}") from error
    if not secrets.compare_digest(fields.get(_NONCE, "").encode(), nonce.hex().encode()):
        raise ProtocolError("its introduction is not for this connection")
    return Command(RequestCode.EXCHANGE_BROKER_HA_INFO, ext=fields), parts.rest


async def introduce(stream: ByteStream, registry: Registrations, address: str) -> None:
    """Say who this slave is, if a plugin signs requests. Raises ProtocolError, anyio's errors."""
    if not _signed(registry, address, {}):
        return
    await stream.send(packed())
    nonce = await _exactly(stream, size_of(await _exactly(stream, _HEAD.size)))
    if len(nonce) != _NONCE_BYTES:
        raise ProtocolError("it does not ask for an introduction as masters do")
    await stream.send(packed(msgspec.json.encode(_signed(registry, address, {_NONCE: nonce.hex()}))))


def _signed(registry: Registrations, address: str, fields: dict[str, str]) -> dict[str, str]:
    """Header fields with what the call hooks add."""
    request = Command(RequestCode.EXCHANGE_BROKER_HA_INFO, ext=fields)
    for entry in registry.call_hooks.entries:
        entry.call("before_call", request, address)
    return request.fields()


async def _exactly(stream: ByteStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.receive(size - len(data))
    return data


__all__ = ["introduce", "introduced", "packed", "size_of"]
