"""JSON as fastjson reads and writes it (wire-protocol sheet, section 1.9).

`loads` takes strict JSON and, when that fails, what fastjson emits besides: bare integer keys, object keys,
bare identifiers as keys, single quotes, trailing commas and comments. Keys always come back as text: an
integer key as its digits, an object key as its compact JSON text. Numbers in string places are the business
of typed decoding, see `convert`.

`dumps` writes compact strict JSON. `dumps(..., raw_keys=True)` writes integer keys and object keys bare. A
table whose keys are queues must go out so: fastjson 1 (RocketMQ up to 5.4) reads an object key bare or as
text, fastjson2 (since 5.5) and the Go client only bare.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from rmqkit.errors import DecodeError
from rmqkit.limits import MAX_JSON_DEPTH
from rmqkit.model.text import text_of

T = TypeVar("T")

_SKIP = re.compile(r"(?:[ \t\r\n]+|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?[LBSFD]?")
_BARE = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "/": "/",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "0": "\0",
    "v": "\v",
}
#: What the strict parser raises.
_NOT_STRICT = (msgspec.DecodeError, UnicodeError, RecursionError)
#: A pair of surrogates, or half of one.
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}


def loads(data: bytes | str, *, max_loose_bytes: int | None = None) -> Any:
    """Parse strict or fastjson's JSON. Empty text is None, as in Java. Bytes that are not UTF-8 are replaced,
    and half of a surrogate pair is `?`, as in the bytes that Java makes of it.

    Raises DecodeError for anything else, bombs included, and for a text that is not strict and longer than
    `max_loose_bytes`: the tolerant parser is slow, and a peer must not be able to keep it busy."""
    if not data:
        return None
    try:
        return _strict(data)
    except UnicodeError:
        data = _whole(data) if isinstance(data, str) else text_of(data)
        try:
            return _strict(data)
        except _NOT_STRICT:
            pass
    except _NOT_STRICT:
        pass
    if max_loose_bytes is not None and len(data) > max_loose_bytes:
        raise DecodeError(
            f"{len(data)} bytes that are not strict JSON, at most {max_loose_bytes} are read as anything else"
        )
    return _Parser(data if isinstance(data, str) else text_of(data)).document()


def _strict(data: bytes | str) -> Any:
    """Parse strict JSON. Raises UnicodeError or _NOT_STRICT; DecodeError for a bomb."""
    value = msgspec.json.decode(data)
    _check_depth(data, value)
    return value


def _check_depth(data: bytes | str, value: Any) -> None:
    """Check the depth of decoded JSON. Raises DecodeError for a value nested too deep. What msgspec takes
    depends on Python's version: 3.12 lets it go thousands of levels down."""
    opening = (
        data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")
    )
    if opening <= MAX_JSON_DEPTH:
        return
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        containers = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, (dict, list))
        ]
        if not containers:
            return
        level = [item for container in containers for item in container]
    raise DecodeError(f"JSON nested deeper than {MAX_JSON_DEPTH}")


def convert(value: object, kind: type[T]) -> T:
    """Shape a parsed value into a struct, taking numbers and booleans where text belongs and the reverse.
    Raises DecodeError."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        return msgspec.convert(_texts(value, 0), kind, strict=False)
    except msgspec.ValidationError as error:
        raise DecodeError(str(error)) from error


def decode(data: bytes | str, kind: type[T], *, max_loose_bytes: int | None = None) -> T:
    """A typed structure from strict or fastjson's JSON; see `loads` and `convert`. Empty text raises
    DecodeError."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except _NOT_STRICT:
        return convert(loads(data, max_loose_bytes=max_loose_bytes), kind)


def _texts(value: object, depth: int) -> object:
    """Copy a tree with every scalar as text, so that lax conversion can make of it what the struct wants;
    null members are dropped."""
    if depth > MAX_JSON_DEPTH:
        raise DecodeError(f"JSON nested deeper than {MAX_JSON_DEPTH}")
    if isinstance(value, dict):
        return {key: _texts(item, depth + 1) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_texts(item, depth + 1) for item in value]
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return value


def dumps(value: object, *, raw_keys: bool = False) -> bytes:
    """Compact JSON bytes. With `raw_keys`, integer keys and keys that are structs are written without quotes,
    the members of such a struct in alphabetical order, as Java does. A struct as a key without `raw_keys` is
    a TypeError."""
    if not raw_keys:
        return msgspec.json.encode(value)
    return "".join(_raw(value)).encode()


def _raw(value: object) -> list[str]:
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        value = {name: getattr(value, attribute) for attribute, name in names}
    if isinstance(value, dict):
        parts = ["{"]
        for number, (key, item) in enumerate(value.items()):
            parts.append("," if number else "")
            parts.append(_raw_key(key))
            parts.append(":")
            parts.extend(_raw(item))
        return [*parts, "}"]
    if isinstance(value, (list, tuple)):
        parts = ["["]
        for number, item in enumerate(value):
            parts.append("," if number else "")
            parts.extend(_raw(item))
        return [*parts, "]"]
    return [msgspec.json.encode(value).decode()]


def _raw_key(key: object) -> str:
    if isinstance(key, int):
        return str(key)
    if isinstance(key, msgspec.Struct):
        return msgspec.json.encode(key, order="sorted").decode()
    return msgspec.json.encode(key).decode()


class _Parser:
    """Recursive descent over text; `MAX_JSON_DEPTH` bounds the recursion, so a bomb costs no more than its
    own bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.in_key = False
        self.skip()

    def document(self) -> Any:
        value = self.value(0)
        if self.at != len(self.text):
            raise self.error("text after the value")
        return value

    def error(self, what: str) -> DecodeError:
        return DecodeError(f"bad JSON: {what} at character {self.at}")

    def skip(self) -> None:
        match = _SKIP.match(self.text, self.at)
        if match:
            self.at = match.end()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, char: str) -> bool:
        if self.peek() != char:
            return False
        self.at += 1
        self.skip()
        return True

    def value(self, depth: int) -> Any:
        if depth > MAX_JSON_DEPTH:
            raise DecodeError(f"JSON nested deeper than {MAX_JSON_DEPTH}")
        char = self.peek()
        if char == "{":
            return self.object(depth)
        if char == "[":
            return self.array(depth)
        if char in ('"', "'") and char:
            return self.string(char)
        return self.scalar()

    def object(self, depth: int) -> dict[str, Any]:
        self.take("{")
        result: dict[str, Any] = {}
        while not self.take("}"):
            key = self.key(depth)
            if not self.take(":"):
                raise self.error("':' expected")
            result[key] = self.value(depth + 1)
            if not self.take(",") and self.peek() != "}":
                raise self.error("',' or '}' expected")
        return result

    def array(self, depth: int) -> list[Any]:
        self.take("[")
        result: list[Any] = []
        while not self.take("]"):
            result.append(self.value(depth + 1))
            if not self.take(",") and self.peek() != "]":
                raise self.error("',' or ']' expected")
        return result

    def key(self, depth: int) -> str:
        char = self.peek()
        if char in ('"', "'") and char:
            return self.string(char)
        if char == "{":
            return self.object_key(depth)
        for pattern in (_NUMBER, _BARE):
            match = pattern.match(self.text, self.at)
            if match and match.group():
                self.at = match.end()
                self.skip()
                return match.group()
        raise self.error("a key expected")

    def object_key(self, depth: int) -> str:
        """The JSON text of an object used as a key. It cannot contain another one: each level of quoting
        would double the text."""
        if self.in_key:
            raise self.error("an object key inside an object key")
        self.in_key = True
        value = self.value(depth + 1)
        self.in_key = False
        return msgspec.json.encode(value).decode()

    def scalar(self) -> Any:
        match = _NUMBER.match(self.text, self.at)
        if match:
            self.at = match.end()
            self.skip()
            digits = match.group().rstrip("LBSFD")
            if len(digits) > 400:
                raise self.error("a number of more than 400 digits")
            return float(digits) if set(digits) & set(".eE") else int(digits)
        match = _BARE.match(self.text, self.at)
        if match and match.group() in _WORDS:
            self.at = match.end()
            self.skip()
            return _WORDS[match.group()]
        raise self.error("a value expected")

    def string(self, quote: str) -> str:
        plain = _PLAIN[quote]
        self.at += 1
        parts: list[str] = []
        while True:
            match = plain.match(self.text, self.at)
            if match:
                parts.append(match.group())
                self.at = match.end()
            char = self.peek()
            if char == quote:
                self.at += 1
                self.skip()
                return _whole("".join(parts))
            if char != "\\":
                raise self.error("unfinished string")
            parts.append(self.escape())

    def escape(self) -> str:
        char = self.text[self.at + 1 : self.at + 2]
        width = {"u": 4, "x": 2}.get(char)
        if width is None:
            if char not in _ESCAPES:
                raise self.error("unknown escape")
            self.at += 2
            return _ESCAPES[char]
        digits = self.text[self.at + 2 : self.at + 2 + width]
        if len(digits) != width or not re.fullmatch(r"[0-9a-fA-F]+", digits):
            raise self.error("bad hexadecimal escape")
        self.at += 2 + width
        return chr(int(digits, 16))


def _whole(text: str) -> str:
    """The text with one character for each pair of surrogates (\\u escapes beyond the basic plane), and `?`
    for each lone half, which UTF-8 cannot express."""
    return text if text.isascii() else _SURROGATES.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    units = found.group()
    return units.encode("utf-16", "surrogatepass").decode("utf-16") if len(units) == 2 else "?"
