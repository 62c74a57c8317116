"""Java's Properties format, and the settings of a broker in it."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from struct import iter_unpack
from typing import Any

from rmqkit.config.owned import Kinds
from rmqkit.config.schema import Config

_LINE_END = re.compile(r"\r\n|\r|\n")
_PROPERTY = re.compile(r"((?:\\.|[^\\=: \t])*)[ \t]*[=: \t]?[ \t]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NOT_LATIN = re.compile("[^\\x00-\\xff]")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def decoded_properties(data: bytes) -> tuple[str, str]:
    """The text of a file in the Properties format, and its encoding: UTF-8, without a byte order mark, else
    Latin-1, as Java reads it: then a comment in another encoding, such as GBK, is odd text and no error."""
    try:
        encoding = "utf-8-sig" if data.startswith(BOM_UTF8) else "utf-8"
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def encoded_properties(text: str, encoding: str) -> bytes:
    """The bytes of such a file; characters that the encoding lacks are written as Java's escapes."""
    return _NOT_LATIN.sub(_escape, text).encode(encoding) if encoding == "latin-1" else text.encode(encoding)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"\\u{unit[0]:04x}" for unit in iter_unpack(">H", match.group().encode("utf-16-be")))


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's Properties format: comments, `=`, `:` or space between key and value, backslash escapes
    and continuation lines."""
    result: dict[str, str] = {}
    lines = iter(_LINE_END.split(text))
    for line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        pieces = [logical]
        while _ends_with_escape(pieces[-1]):
            pieces[-1] = pieces[-1][:-1]
            pieces.append(next(lines, "").lstrip())
        match = _PROPERTY.fullmatch("".join(pieces))
        if match:
            result[_unescape(match.group(1))] = _unescape(match.group(2)).strip()
    return result


def _ends_with_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        what = match.group(1)
        return chr(int(what[1:], 16)) if len(what) == 5 else _ESCAPED.get(what, what)

    # Two escapes may form one character beyond the basic plane; a single half cannot be encoded.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def properties_text(config: Config, kinds: Kinds = ()) -> str:
    """All settings except plugins' tables as `key=value` lines, unescaped, as in the answer to
    GET_BROKER_CONFIG: secrets in plugins' tables cannot be recognised. `kinds` as in `Config.described`."""
    rows = config.described(kinds)
    return "".join(f"{key}={_property(value)}\n" for key, value, _ in rows if not key.startswith("plugins."))


def _property(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)
