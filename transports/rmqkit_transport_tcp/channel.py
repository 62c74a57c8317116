"""TLS without I/O: ciphertext in, ciphertext out, plain bytes on the other side (OpenSSL by way of `ssl.MemoryBIO`).

Nothing has to be sent at once in order to read: what OpenSSL answers by itself after the handshake (a key update) leaves with the next write. So the
reader of a connection never has to wait for its writer.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress

from rmqkit.abc import Buffer
from rmqkit.limits import MAX_TLS_ANSWER_BYTES

#: The plain bytes of a TLS record, which is what OpenSSL gives at a time.
_RECORD_BYTES = 16_384
#: Plain bytes encrypted at a time: enough that one system call sends much, little enough that a long answer is not held twice.
CHUNK_BYTES = 128 * 1024


class TlsChannel:
    """One end of a TLS connection. All methods raise ssl.SSLError when the peer breaks the protocol, or will not do."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname)

    def handshake(self) -> bool:
        """Go on with the handshake; False: send what `take` gives, feed what comes, call again."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, ciphertext: bytes) -> None:
        """What the peer sent; empty: it ended."""
        if ciphertext:
            self._incoming.write(ciphertext)
        else:
            self._incoming.write_eof()

    def read(self, max_bytes: int) -> bytes | None:
        """Plain bytes, empty at the end of the peer's, None when more must be fed first.

        An end without farewell counts as one: frames say themselves whether they are whole.
        """
        pieces: list[bytes] = []
        room = max_bytes
        while room:
            try:
                piece = self._object.read(min(room, _RECORD_BYTES))
            except ssl.SSLWantReadError:
                if not pieces:
                    if self._outgoing.pending > MAX_TLS_ANSWER_BYTES:
                        raise ssl.SSLError("the peer asks for new keys again and again") from None
                    return None
                break
            except ssl.SSLEOFError:
                break
            if not piece:
                break
            pieces.append(piece)
            room -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, data: Buffer | bytearray) -> bytes:
        """The ciphertext of at most CHUNK_BYTES, together with whatever else waits to be sent."""
        if len(data):
            self._object.write(data)
        return self._outgoing.read()

    def take(self) -> bytes:
        """Ciphertext that waits to be sent."""
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """The ciphertext that says the connection ends here; nothing can be written afterwards."""
        # It would like to read the peer's farewell, or the peer has broken the protocol: nobody waits for either.
        with suppress(ssl.SSLError, ValueError):
            self._object.unwrap()
        return self._outgoing.read()


def chunks(parts: Sequence[Buffer | bytearray]) -> Iterator[Buffer | bytearray]:
    """The same bytes in pieces of at most CHUNK_BYTES, small neighbours joined: each piece costs a record or more."""
    gathered: list[Buffer | bytearray] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        while len(view):
            piece = view[: CHUNK_BYTES - size]
            view = view[len(piece) :]
            gathered.append(piece)
            size += len(piece)
            if size == CHUNK_BYTES:
                yield piece if len(gathered) == 1 else b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
