"""Change single settings in a configuration file and leave everything else in it as it is, comments
included."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rmqkit.config import decoded_properties, encoded_properties, parse_properties
from rmqkit.errors import ConfigError

#: A value as it is written into a file.
Value = str | int | bool

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


def change(path: Path, values: Mapping[str, Value]) -> None:
    """Set settings in a TOML file (ending .toml) or in Java properties; blocks until the new file is on the
    device. Keys have no dots.

    The file is replaced as a whole, so a reader sees the old or the new one; permissions, symbolic
    links and the encoding of properties stay. Raises OSError, UnicodeDecodeError for TOML that is not UTF-8,
    and ConfigError when the file is written in a way that cannot be changed line by line.
    """
    path = path.resolve()
    data = path.read_bytes()
    if path.suffix.lower() == ".toml":
        _replace(path, edited(data.decode(), values, toml=True).encode())
    else:
        text, encoding = decoded_properties(data)
        _replace(path, encoded_properties(edited(text, values, toml=False), encoding))


def edited(text: str, values: Mapping[str, Value], *, toml: bool) -> str:
    """The text with settings changed where they are, or added. Raises ConfigError."""
    read: Callable[[str], Mapping[str, object]] = tomllib.loads if toml else parse_properties
    form = _toml_line if toml else _property_line
    wanted = dict(read(text)) | {key: value if toml else _text(value) for key, value in values.items()}
    for key, value in values.items():
        text = _with_line(text, key, form(key, value), toml=toml)
    try:
        if read(text) == wanted:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise ConfigError(
        "the configuration file is written in a way that cannot be changed by a program: set"
        f" {', '.join(values)} by hand"
    )


def _with_line(text: str, key: str, line: str, *, toml: bool) -> str:
    """In TOML the settings are those before the first table. Of several lines in properties the last one
    counts."""
    table = _TABLE.search(text) if toml else None
    head, tail = (text, "") if table is None else (text[: table.start()], text[table.start() :])
    separator = "[ \t]*=" if toml else "[ \t]*[=: \t]"
    places = list(re.finditer(rf"^[ \t]*{re.escape(key)}{separator}[^\r\n]*", head, re.MULTILINE))
    if places:
        place = places[-1]
        return head[: place.start()] + line + head[place.end() :] + tail
    if head and not head.endswith("\n"):
        head += "\n"
    return f"{head}{line}\n{tail}"


def _toml_line(key: str, value: Value) -> str:
    return f"{key} = {msgspec.json.encode(value).decode()}"


def _property_line(key: str, value: Value) -> str:
    return f"{key}={_text(value).replace(chr(92), chr(92) * 2)}"


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(path.name + ".tmp")
    mode = path.stat().st_mode & 0o777
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
