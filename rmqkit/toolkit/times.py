"""Points in time and spans as texts for people, and points in time as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmqkit.model.spans import span_ms


def moment_ms(text: str) -> int:
    """A point in time in ms since 1970: an age (90s, 10m, 2h, 3d ago), an ISO 8601 time (local unless it has
    a zone), or ms since 1970. Raises ValueError, which says what may be written."""
    if text.isdecimal():
        return int(text)
    age_ms = span_ms(text)
    try:
        if age_ms is not None:
            return int((datetime.now(UTC) - timedelta(milliseconds=age_ms)).timestamp() * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: give an age (90s, 10m, 2h, 3d), an ISO time (2026-05-01T10:00,"
            " 2026-05-01T08:00:00Z), or milliseconds since 1970"
        ) from None


def time_text(timestamp_ms: int) -> str:
    """A time as UTC with milliseconds; `-` for 0."""
    if timestamp_ms <= 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def span_text(span_ms: int | None) -> str:
    """A span in its two largest units: 2d 3h, 5m 1s, 1.234s; `-` when it is unknown."""
    if span_ms is None:
        return "-"
    if span_ms < 60_000:
        return f"{span_ms / 1000:g}s"
    minutes, seconds = divmod(span_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])


__all__ = ["moment_ms", "span_text", "time_text"]
