"""Limits of what a consumer pulls ahead (behaviour sheet, B7)."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge, instance_of, le

from rmqkit.client.consumer.process_queue import ProcessQueue

_MIB = 1 << 20


@frozen(kw_only=True)
class Prefetch:
    """How much is pulled ahead of the handlers, for each queue. A queue beyond a limit is not pulled; the
    others are (Java: pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan).

    messages  unfinished messages, 1 to 65535
    mib       MiB of their bodies, 1 to 1024
    span      distance in offsets between the first and the last unfinished message, 1 to 65535. One slow
              message keeps the offset from moving, and everything behind it is delivered again after a crash.
              Ordered queues have no such limit
    """

    messages: int = field(default=1000, validator=[instance_of(int), ge(1), le(65_535)])
    mib: int = field(default=100, validator=[instance_of(int), ge(1), le(1024)])
    span: int = field(default=2000, validator=[instance_of(int), ge(1), le(65_535)])

    def room_bytes(self, queue: ProcessQueue) -> int:
        """Bytes of bodies that the queue may take until it exceeds the limit."""
        return self.mib * _MIB - queue.size

    def exceeded_by(self, queue: ProcessQueue, *, ordered: bool) -> str | None:
        """The name of the limit that the queue exceeds, or None when it may be pulled."""
        if len(queue) > self.messages:
            return "messages"
        if queue.size > self.mib * _MIB:
            return "mib"
        if not ordered and queue.span > self.span:
            return "span"
        return None
