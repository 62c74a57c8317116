"""Header compression of HTTP/2 (RFC 7541): a decoder, and an encoder that needs no table.

What a server of gRPC sends is a few constant blocks, so they are literals which the other end need not
remember."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rmqkit.errors import ProtocolError

#: The part of the table that both ends know (appendix A); a name without a value stands for itself.
_STATIC = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https
:status 200|:status 204|:status 206|:status 304|:status 400|:status 404|:status 500
accept-charset|accept-encoding gzip, deflate|accept-language|accept-ranges|accept
access-control-allow-origin|age|allow|authorization|cache-control|content-disposition|content-encoding
content-language|content-length|content-location|content-range|content-type|cookie|date|etag|expect
expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified
link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""
#: The lengths of the Huffman codes of all bytes and of the end mark, as digits of base 32 (appendix B). The
#: codes are canonical: those of one length are neighbours, in the order of the bytes.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6"
    "f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn"
    "qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
_END_MARK = 256
#: A padding of eight bits or more is a fault: it would be a byte.
_MAX_PADDING_BITS = 7
#: The size of a table that SETTINGS_HEADER_TABLE_SIZE allows without saying anything.
_TABLE_BYTES = 4_096
_ENTRY_BYTES = 32
#: The longest integer that makes sense here: 28 bits.
_MAX_SHIFT = 21
_CACHED_BYTES = 64

Field = tuple[str, str]


def _static_table() -> list[Field]:
    fields = [("", "")]
    for text in "|".join(_STATIC.split("\n")).strip("|").split("|"):
        name, _, value = text.partition(" ")
        fields.append((name, value))
    return fields


STATIC = _static_table()
_FIRST_DYNAMIC = len(STATIC)
_STATUS_200 = STATIC.index((":status", "200"))


class _Node:
    """A place in the tree of codes. `next` has, for each four bits, the bytes that they complete and the
    place behind; None where no code goes on so. `may_end` says whether the bits on the way here may be a
    padding."""

    __slots__ = ("children", "may_end", "next", "symbol")

    def __init__(self) -> None:
        self.children: list[_Node | None] = [None, None]
        self.symbol: int | None = None
        self.may_end = False
        self.next: list[tuple[bytes, _Node] | None] = []


def _tree() -> _Node:
    root, inner, code, length = _Node(), list[_Node](), 0, 0
    inner.append(root)
    lengths = [int(digit, 32) for digit in _LENGTHS]
    for symbol in sorted(range(len(lengths)), key=lambda each: (lengths[each], each)):
        code <<= lengths[symbol] - length
        length = lengths[symbol]
        node = root
        for shift in range(length - 1, -1, -1):
            bit = code >> shift & 1
            child = node.children[bit]
            if child is None:
                child = node.children[bit] = _Node()
                if shift:
                    inner.append(child)
            node = child
        node.symbol = symbol
        code += 1
    padding = root
    for _ in range(_MAX_PADDING_BITS + 1):
        padding.may_end = True
        padding = padding.children[1] or padding
    for node in inner:
        node.next = [_walk(root, node, bits) for bits in range(16)]
    return root


def _walk(root: _Node, node: _Node, bits: int) -> tuple[bytes, _Node] | None:
    """What four bits complete from a place on, and where they lead to."""
    found = bytearray()
    for shift in (3, 2, 1, 0):
        child = node.children[bits >> shift & 1]
        if child is None or child.symbol == _END_MARK:
            return None
        node = child
        if child.symbol is not None:
            found.append(child.symbol)
            node = root
    return bytes(found), node


_ROOT = _tree()


def huffman_decoded(data: bytes) -> bytes:
    """The bytes of a Huffman code. Raises ProtocolError."""
    node, found = _ROOT, []
    try:
        for byte in data:
            part, node = node.next[byte >> 4]  # type: ignore[misc]
            found.append(part)
            part, node = node.next[byte & 15]  # type: ignore[misc]
            found.append(part)
    except TypeError:
        raise ProtocolError("HTTP/2: a header has no Huffman code") from None
    if not node.may_end:
        raise ProtocolError("HTTP/2: a Huffman code of a header has a wrong end")
    return b"".join(found)


@lru_cache(maxsize=1_024)
def _frequent(data: bytes) -> str:
    """A text that may come again."""
    return huffman_decoded(data).decode(errors="replace")


class Decoder:
    """Reads the header blocks of one connection, in order. `max_bytes` is the limit of a list of headers, as
    SETTINGS_MAX_HEADER_LIST_SIZE counts it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        #: The newest entry last, with its size.
        self._table: list[tuple[str, str, int]] = []
        self._table_bytes = 0
        self._room_bytes = _TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """The headers of a block. Raises ProtocolError, after which no other block can be read."""
        at, end, size = 0, len(block), 0
        fields: list[Field] = []
        try:
            while at < end:
                byte = block[at]
                if byte & 0x80:
                    index, at = _integer(block, at, 0x7F)
                    field = self._field(index)
                elif byte & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self._remember(field)
                elif byte & 0x20:
                    if fields:
                        raise ProtocolError("HTTP/2: a header table is resized inside of a block")
                    at = self._resize(block, at)
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
                if size > self._max_bytes:
                    raise ProtocolError(
                        f"HTTP/2: the headers of a call have more than {self._max_bytes} bytes"
                    )
                fields.append(field)
        except IndexError:
            raise ProtocolError("HTTP/2: a header block ends too early") from None
        return fields

    def _field(self, index: int) -> Field:
        if 0 < index < _FIRST_DYNAMIC:
            return STATIC[index]
        back = index - _FIRST_DYNAMIC + 1
        if not 0 < back <= len(self._table):
            raise ProtocolError(f"HTTP/2: there is no header {index}")
        return self._table[-back][:2]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _integer(block, at, mask)
        if index:
            name = self._field(index)[0]
        else:
            name, at = self._text(block, at)
        value, at = self._text(block, at)
        return (name, value), at

    def _text(self, block: bytes, at: int) -> tuple[str, int]:
        is_coded = block[at] & 0x80
        length, at = _integer(block, at, 0x7F)
        if length > self._max_bytes:
            raise ProtocolError(f"HTTP/2: a header of {length} bytes")
        end = at + length
        data = block[at:end]
        if len(data) < length:
            raise IndexError
        if not is_coded:
            return data.decode(errors="replace"), end
        if length <= _CACHED_BYTES:
            return _frequent(data), end
        return huffman_decoded(data).decode(errors="replace"), end

    def _remember(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._table_bytes += size
        self._table.append((*field, size))
        self._evict()

    def _resize(self, block: bytes, at: int) -> int:
        room, at = _integer(block, at, 0x1F)
        if room > _TABLE_BYTES:
            raise ProtocolError(f"HTTP/2: a header table of {room} bytes, at most {_TABLE_BYTES} are allowed")
        self._room_bytes = room
        self._evict()
        return at

    def _evict(self) -> None:
        table, gone = self._table, 0
        while self._table_bytes > self._room_bytes:
            self._table_bytes -= table[gone][2]
            gone += 1
        if gone:
            del table[:gone]


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number that begins in the low bits of a byte, and the place behind it. Raises IndexError at the end
    of the block."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise ProtocolError("HTTP/2: a number in a header block is too large")


def encoded(headers: Sequence[Field]) -> bytes:
    """A header block of literals, which leave the table of the other end as it is."""
    parts = []
    for name, value in headers:
        if (name, value) == STATIC[_STATUS_200]:
            parts.append(bytes([0x80 | _STATUS_200]))
        else:
            parts += [b"\0", _sized(name.encode()), _sized(value.encode())]
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    """A text without a Huffman code, behind its length."""
    length = len(data)
    if length < 0x7F:
        return bytes([length]) + data
    head, length = bytearray([0x7F]), length - 0x7F
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


__all__ = ["STATIC", "Decoder", "Field", "encoded", "huffman_decoded"]
