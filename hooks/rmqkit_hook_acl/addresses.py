"""Patterns of addresses in plain_acl.yml (Java: RemoteAddressStrategyFactory).

`*` or `*.*.*.*` is any; parts of an IPv4 address may be `*` or a range `1-20`, the last one a list `{1,7}`;
several addresses are joined by commas; an IPv6 address may end with `*`.
"""

from __future__ import annotations

import re

from attrs import frozen

from rmqkit_hook_acl.model import address_of, refused

_LIST = re.compile(r"([^{},]*)\{([^{}]*)\}")


@frozen
class AddressPattern:
    """Which addresses a text stands for."""

    _any: bool
    _texts: frozenset[str]
    _parts: tuple[tuple[range, ...], ...]
    _beginnings: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """The pattern of a text; an empty one stands for no address. Raises RequestRefused."""
        texts: set[str] = set()
        parts: list[tuple[range, ...]] = []
        beginnings: list[str] = []
        is_any = False
        for one in _each(text):
            if one in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
                is_any = True
            elif ":" in one and one.endswith("*"):
                beginnings.append(_checked_beginning(one[:-1], text))
            elif ":" in one or not set("*-") & set(one):
                found = address_of(one)
                if found is None:
                    raise _wrong(text)
                texts.add(str(found))
            else:
                parts.append(_ranges(one, text))
        return cls(is_any, frozenset(texts), tuple(parts), tuple(beginnings))

    def matches(self, host: str) -> bool:
        """Whether the address of a peer is one of them."""
        address = address_of(host)
        if address is None:
            return False
        if self._any or str(address) in self._texts:
            return True
        if address.version == 6:
            return any(address.exploded.startswith(beginning) for beginning in self._beginnings)
        numbers = address.packed
        return any(
            all(number in part for number, part in zip(numbers, parts, strict=True)) for parts in self._parts
        )


def _each(text: str) -> list[str]:
    """The single patterns of a text."""
    found = _LIST.search(text)
    if found is not None:
        beginning = found[1].strip()
        return [f"{beginning}{end.strip()}" for end in found[2].split(",") if end.strip()]
    return [one.strip() for one in text.split(",") if one.strip()]


def _ranges(one: str, text: str) -> tuple[range, ...]:
    parts = one.split(".")
    if len(parts) != 4:
        raise _wrong(text)
    return tuple(_range(part, text) for part in parts)


def _range(part: str, text: str) -> range:
    if part == "*":
        return range(256)
    low, dash, high = part.partition("-")
    if not (low.isdecimal() and (high.isdecimal() or not dash)):
        raise _wrong(text)
    first, last = int(low), int(high or low)
    if not 0 <= first <= last <= 255:
        raise _wrong(text)
    return range(first, last + 1)


def _checked_beginning(beginning: str, text: str) -> str:
    """The beginning of an IPv6 address in its long form."""
    groups = beginning.rstrip(":").split(":")
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,4}", group) for group in groups) or not beginning.endswith(":"):
        raise _wrong(text)
    return ":".join(group.lower().zfill(4) for group in groups) + ":"


def _wrong(text: str) -> Exception:
    return refused(
        f"{text!r} is not a pattern of addresses such as 10.10.*.*, 192.168.0.1-20, 10.0.0.{{1,2}} or a list"
        " of them"
    )
