"""Recorded bytes and bodies of other people's software.

`wire.json` holds the examples the wire-protocol sheet marks as verified. `java_bodies.tsv` holds bodies as
each version of Apache's Java classes writes them (versions, class, text); tests/interop/test_java_bodies.py
compares them with the classes themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DIRECTORY = Path(__file__).parent
_WIRE: dict[str, dict[str, Any]] = json.loads((_DIRECTORY / "wire.json").read_text(encoding="utf-8"))


def vector(name: str) -> dict[str, Any]:
    """A whole entry of wire.json."""
    return _WIRE[name]


def names() -> list[str]:
    return list(_WIRE)


def text(name: str) -> bytes:
    """The body or header of an entry, as it travels."""
    return str(_WIRE[name]["text"]).encode()


def raw(name: str) -> bytes:
    """The bytes of an entry that is given in hexadecimal."""
    return bytes.fromhex(_WIRE[name]["hex"])


def frame(name: str) -> bytes:
    """Prefix and text of an entry that has both."""
    return bytes.fromhex(_WIRE[name]["prefix"]) + text(name)


def values(name: str) -> dict[str, int]:
    """A table of inputs and results."""
    return dict(_WIRE[name]["values"])


def java_bodies(version: str) -> dict[str, bytes]:
    """What a version of RocketMQ writes, by the name of the class."""
    rows = (
        line.split("\t", 2)
        for line in (_DIRECTORY / "java_bodies.tsv").read_text(encoding="utf-8").splitlines()
    )
    return {name: text.encode() for versions, name, text in rows if version in versions.split(",")}
