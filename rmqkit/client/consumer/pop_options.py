"""Settings of a pop consumer (Java: popInvisibleTime, popThresholdForQueue of DefaultMQPushConsumer)."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from attrs import frozen

from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.assigned import Order
from rmqkit.client.consumer.bad_records import BadRecords, check_bad_records
from rmqkit.client.consumer.handling import check_handling
from rmqkit.errors import ClientError
from rmqkit.model.subscription import CLUSTERING, FROM_FIRST_OFFSET, FROM_LAST_OFFSET

#: Limits of a lease, and of what is leased ahead of the handlers.
LEASE_LIMITS_MS = (1_000, 12 * 3_600_000)
MAX_LEASED_AHEAD = 1024


class PopKeywords(TypedDict, total=False):
    """Keywords that `Client.pop_consumer` passes on to `PopOptions`."""

    order: Order
    concurrency: int
    max_attempts: int | None
    drain_s: float
    stop_after_failures: int | None
    lease_ms: int
    prefetch: int
    start: Literal["first", "last"]
    bad_records: BadRecords


@frozen(kw_only=True)
class PopOptions:
    """Settings of a pop consumer.

    order          "none": messages are handled in parallel; "queue": one message of a queue at a time, in
                   order, whichever member gets it; "key": the same for the messages with one ordering key.
                   Brokers of Apache know "queue" alone
    concurrency    maximum number of handlers at a time
    max_attempts   deliveries of a message, the first one included, until it goes to the dead-letter topic.
                   Default: as many as the group's settings at the broker allow, which count in any case
    drain_s        how long handlers may go on when the consumer is left
    stop_after_failures  as in `PushOptions`
    lease_ms       how long a message belongs to this member before its lease is renewed or ends, 1000 to
                   43200000. What a killed member had is delivered to others so much later
    prefetch       messages that are leased ahead of idle handlers, 0 to 1024. One that waits for a handler
                   for a second is given back, for members that are idle
    start          where a group begins that has no offset, as in `GroupOptions`
    bad_records    as in `GroupOptions`
    codec          as in `GroupOptions`

    Raises ClientError for a value out of range.
    """

    order: Order = "none"
    concurrency: int = 20
    max_attempts: int | None = None
    drain_s: float = 30.0
    stop_after_failures: int | None = None
    lease_ms: int = 60_000
    prefetch: int = 32
    start: Literal["first", "last"] = "last"
    bad_records: BadRecords = "dead_letter"
    codec: Codec[Any] | None = None

    def __attrs_post_init__(self) -> None:
        check_bad_records(self.bad_records)
        check_handling(
            self.order, self.concurrency, self.max_attempts, self.drain_s, self.stop_after_failures
        )
        if self.start not in ("first", "last"):
            raise ClientError(f"start={self.start!r}: must be first or last")
        check_lease(self.lease_ms)
        if not 0 <= self.prefetch <= MAX_LEASED_AHEAD:
            raise ClientError(f"prefetch={self.prefetch}: 0 to {MAX_LEASED_AHEAD} messages are allowed")

    @property
    def ordered(self) -> bool:
        """Whether failed messages are repeated in place."""
        return self.order != "none"

    @property
    def consume_from_where(self) -> str:
        """`start` in the words of heartbeats."""
        return FROM_FIRST_OFFSET if self.start == "first" else FROM_LAST_OFFSET

    def described(self) -> dict[str, str]:
        """The settings by their names in Java, for administrators."""
        return {
            "PROP_CONSUMEORDERLY": str(self.ordered).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(self.concurrency),
            "clientRebalance": "false",
            "consumeFromWhere": self.consume_from_where,
            "consumeThreadMax": str(self.concurrency),
            "messageModel": CLUSTERING,
            "popInvisibleTime": str(self.lease_ms),
            "popThresholdForQueue": str(self.prefetch),
        }


def check_lease(lease_ms: int) -> None:
    """Check the length of a lease. Raises ClientError."""
    low, high = LEASE_LIMITS_MS
    if not low <= lease_ms <= high:
        raise ClientError(f"lease_ms={lease_ms}: a lease lasts {low} to {high} ms")
