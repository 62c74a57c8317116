"""TLS without I/O: ciphertext in, ciphertext out, plain bytes on the other side (OpenSSL through
`ssl.MemoryBIO`).

Reading never requires an immediate send: data that OpenSSL produces itself after the handshake (a key update)
is sent with the next write. So the reader of a connection never waits for its writer.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

from rmqkit.model.buffer import Buffer
from rmqkit_transport_tcp.limits import MAX_TLS_ANSWER_BYTES

#: Maximum size of the plain bytes in a TLS record, which OpenSSL returns at a time.
_RECORD_BYTES = 16_384


class TlsChannel:
    """One end of a TLS connection. All methods raise ssl.SSLError when the peer violates the protocol or
    rejects the connection."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )

    def handshake(self) -> bool:
        """Continue the handshake. Returns False when it is not complete: send the data of `take`, feed
        received data, call again."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate in DER form, checked during the handshake; None when it showed none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def alpn(self) -> str | None:
        """The protocol chosen in the handshake."""
        return self._object.selected_alpn_protocol()

    def feed(self, ciphertext: bytes) -> None:
        """Process received ciphertext; empty when the peer has ended."""
        if ciphertext:
            self._incoming.write(ciphertext)
        else:
            self._incoming.write_eof()

    def read(self, max_bytes: int) -> bytes | None:
        """Plain bytes; empty at the end of the peer's data, None when more must be fed first.

        An end without a closing message counts as an end, because frames contain their length.
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
        """The ciphertext of at most CHUNK_BYTES, together with other data to be sent."""
        if len(data):
            self._object.write(data)
        return self._outgoing.read()

    def take(self) -> bytes:
        """Ciphertext to be sent."""
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """The ciphertext of the closing message; nothing can be written afterwards."""
        # OpenSSL wants to read the peer's closing message, or the peer has violated the protocol; neither is
        # waited for.
        with suppress(ssl.SSLError, ValueError):
            self._object.unwrap()
        return self._outgoing.read()
