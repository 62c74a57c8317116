"""Hashes of keys as the index has them (store-format sheet, section 4.2), fast for the keys that clients make."""

from __future__ import annotations

from rmqkit.protocol.tags import absolute_hash, extend_hash

_UNIQUE_KEY_LENGTH = 32
_HEAD_LENGTH = 28
_MAX_HEADS = 4096
_PAIRS = {f"{number:02X}": extend_hash(0, f"{number:02X}") for number in range(256)}
_POWER_32 = pow(31, _UNIQUE_KEY_LENGTH, 1 << 32)
_POWER_4 = 31**4
_POWER_2 = 31**2


class KeyHasher:
    """`absolute_hash(hash of topic#key)`, fast for the unique keys of clients.

    Such a key has 32 hexadecimal digits, and those of one client and millisecond differ in the last four alone, so the hashes of beginnings are kept.
    """

    def __init__(self) -> None:
        self._heads: dict[str, int] = {}
        self._clients: dict[str, int] = {}

    def unique(self, key_code: int, key: str) -> int:
        head = self._heads.get(key[:_HEAD_LENGTH])
        if head is None:
            head = self._head(key[:_HEAD_LENGTH])
        third, fourth = _PAIRS.get(key[28:30]), _PAIRS.get(key[30:])
        if third is None or fourth is None or len(key) != _UNIQUE_KEY_LENGTH:
            return absolute_hash(extend_hash(key_code, key))
        return absolute_hash(key_code * _POWER_32 + head * _POWER_4 + third * _POWER_2 + fourth & 0xFFFFFFFF)

    def _head(self, text: str) -> int:
        client = text[:20]
        code = self._clients.get(client)
        if code is None:
            if len(self._clients) >= _MAX_HEADS:
                self._clients.clear()
            code = self._clients[client] = extend_hash(0, client)
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        code = self._heads[text] = extend_hash(code, text[20:])
        return code
