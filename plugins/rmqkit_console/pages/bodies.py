"""Bodies of messages as texts."""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.client import ReceivedMessage, message_views

#: How a body may be shown; `auto` is JSON if it is that, else text if it is that, else hex.
FORMS = ("auto", "text", "json", "hex")
#: Bytes of a body that a page shows.
MAX_SHOWN_BYTES = 64 * 1024
_SNIPPET = 160
_PER_LINE = 16


def shown(body: bytes, form: str) -> tuple[str, str]:
    """The first `MAX_SHOWN_BYTES` of a body, and the form that was chosen. Text that is not UTF-8 has its
    other bytes escaped, JSON that is none is shown as text."""
    start = body[:MAX_SHOWN_BYTES]
    if form in ("auto", "json"):
        pretty = _json(body)
        if pretty is not None:
            return pretty[:MAX_SHOWN_BYTES], "json"
        form = "text" if form == "json" or _is_text(body) else "hex"
    return (_hex(start), "hex") if form == "hex" else (start.decode("utf-8", "backslashreplace"), "text")


def listed(message: ReceivedMessage, *, hide: bool) -> dict[str, Any]:
    """A message as a list has it: without its body, but for the beginning unless that is hidden."""
    found = message_views.message_dict(message)
    found.pop("body", None)
    found.pop("bodyHex", None)
    snippet = bytes(message.body[: _SNIPPET * 4]).decode("utf-8", "backslashreplace")
    more = "..." if len(snippet) > _SNIPPET or len(message.body) > _SNIPPET * 4 else ""
    return found | {"bodyBytes": len(message.body), "snippet": None if hide else snippet[:_SNIPPET] + more}


def _is_text(body: bytes) -> bool:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text[:MAX_SHOWN_BYTES])


def _json(body: bytes) -> str | None:
    """An object or an array with indentation; None for everything else."""
    if body[:1] not in (b"{", b"[") or len(body) > MAX_SHOWN_BYTES * 16:
        return None
    try:
        msgspec.json.decode(body)
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), _PER_LINE):
        part = body[at : at + _PER_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{_PER_LINE * 3}} {text}")
    return "\n".join(lines)


__all__ = ["FORMS", "MAX_SHOWN_BYTES", "listed", "shown"]
