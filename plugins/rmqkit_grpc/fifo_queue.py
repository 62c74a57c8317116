"""The queue of a message group: a jump consistent hash (Lamping and Veach, 2014) of Java's hash of the
group, so that the messages of a group stay in one queue as long as the number of queues does not change
(gRPC sheet, section 7.3)."""

from __future__ import annotations

from rmqkit.protocol.tags import java_hash

_MULTIPLIER = 2_862_933_555_777_941_757
_WORD = (1 << 64) - 1
_STEPS = 1 << 31


def queue_for(group: str, queues: int) -> int:
    """The queue of a message group in a topic with so many queues, at least one."""
    return jump(java_hash(group), queues)


def jump(number: int, buckets: int) -> int:
    """The bucket of a number (Guava: Hashing.consistentHash)."""
    state = number & _WORD
    bucket = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _WORD
        following = int((bucket + 1) / (((state >> 33) + 1) / _STEPS))
        if following >= buckets:
            return bucket
        bucket = following


__all__ = ["jump", "queue_for"]
