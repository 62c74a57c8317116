"""The settings that consumers with handlers have in common."""

from __future__ import annotations

from rmqkit.client.consumer.assigned import LANES
from rmqkit.errors import ClientError

MAX_CONCURRENCY = 10_000


def check_handling(
    order: str, concurrency: int, max_attempts: int | None, drain_s: float, stop_after_failures: int | None
) -> None:
    """Check the settings for handlers. Raises ClientError."""
    if order not in LANES:
        raise ClientError(f"order={order!r}: must be {', '.join(LANES)}")
    if not 0 < concurrency <= MAX_CONCURRENCY:
        raise ClientError(f"concurrency={concurrency}: 1 to {MAX_CONCURRENCY} are allowed")
    if max_attempts is not None and max_attempts < 1:
        raise ClientError(f"max_attempts={max_attempts}: the first delivery is an attempt")
    if drain_s < 0:
        raise ClientError(f"drain_s={drain_s}: must not be negative")
    if stop_after_failures is not None and stop_after_failures < 1:
        raise ClientError(f"stop_after_failures={stop_after_failures}: must be 1 at least, or None")
