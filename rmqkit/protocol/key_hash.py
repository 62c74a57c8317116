"""Hashes of keys for the index (store-format sheet, section 4.2), optimised for clients' unique keys."""

from __future__ import annotations

from rmqkit.protocol.tags import absolute_hash, extend_hash

_UNIQUE_KEY_LENGTH = 32
_HEAD_LENGTH = 28
_MAX_HEADS = 4096
_HALF = 0x80000000
_MASK = 0xFFFFFFFF
#: Hash of the last two digits, and the contribution of the two digits before them.
_FOURTH = {f"{number:02X}": extend_hash(0, f"{number:02X}") for number in range(256)}
_THIRD = {pair: code * 31**2 & _MASK for pair, code in _FOURTH.items()}
_POWER_28 = pow(31, _HEAD_LENGTH, 1 << 32)
_POWER_4 = 31**4


class KeyHasher:
    """`absolute_hash(hash of topic#key)`, fast for the unique keys of clients.

    Such a key has 32 hexadecimal digits. Keys of the same client and millisecond differ only in the last
    four, so the hashes of the digits before are cached.
    """

    def __init__(self) -> None:
        self._heads: dict[int, dict[str, int]] = {}
        self._clients: dict[str, int] = {}
        self._kept = 0

    def unique(self, key_code: int, key: str) -> int:
        """The hash of a unique key. `key_code` is the hash of `topic#`."""
        heads = self._heads.get(key_code)
        if heads is None:
            heads = self._heads[key_code] = {}
        try:
            code = heads[key[:_HEAD_LENGTH]] + _THIRD[key[28:30]] + _FOURTH[key[30:]] & _MASK
        except KeyError:
            if len(key) != _UNIQUE_KEY_LENGTH or key[28:30] not in _THIRD or key[30:] not in _FOURTH:
                return absolute_hash(extend_hash(key_code, key))
            code = self._head(key_code, key[:_HEAD_LENGTH]) + _THIRD[key[28:30]] + _FOURTH[key[30:]] & _MASK
        return code if code < _HALF else _MASK + 1 - code & ~_HALF

    def _head(self, key_code: int, text: str) -> int:
        """The contribution of `topic#` and the beginning of a key to the hash of the whole."""
        if self._kept >= _MAX_HEADS:
            self._heads.clear()
            self._clients.clear()
            self._kept = 0
        client = text[:20]
        code = self._clients.get(client)
        if code is None:
            code = self._clients[client] = extend_hash(0, client)
        self._kept += 1
        code = (key_code * _POWER_28 + extend_hash(code, text[20:])) * _POWER_4 & _MASK
        self._heads.setdefault(key_code, {})[text] = code
        return code
