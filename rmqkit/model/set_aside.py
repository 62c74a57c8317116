"""What is known of a record that a broker has set aside, and its form as properties: the message in the topic
`rmq_sys_SET_ASIDE` has the whole record as its body."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

SERVICE = "ASIDE_SERVICE"
REASON = "ASIDE_REASON"
TOPIC = "ASIDE_TOPIC"
QUEUE_ID = "ASIDE_QUEUE_ID"
QUEUE_OFFSET = "ASIDE_QUEUE_OFFSET"
PHYSICAL_OFFSET = "ASIDE_PHYSICAL_OFFSET"
#: Longer reasons are cut: a properties text has a limit.
MAX_REASON_CHARS = 1_000


@frozen
class Origin:
    """The place of a record, and the service that could not pass it on. `topic` and the queue are those in
    which the record was found, as SCHEDULE_TOPIC_XXXX for a delayed message."""

    service: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int

    def __str__(self) -> str:
        return (
            f"the record at log offset {self.physical_offset} ({self.service}: {self.topic} queue"
            f" {self.queue_id} offset {self.queue_offset})"
        )


def properties_of(origin: Origin, reason: str) -> dict[str, str]:
    """The properties of the message that contains the record."""
    text = reason[:MAX_REASON_CHARS].replace("\x01", "\ufffd").replace("\x02", "\ufffd")
    return {
        SERVICE: origin.service,
        REASON: text.encode("utf-8", "replace").decode(),
        TOPIC: origin.topic,
        QUEUE_ID: str(origin.queue_id),
        QUEUE_OFFSET: str(origin.queue_offset),
        PHYSICAL_OFFSET: str(origin.physical_offset),
    }


def read(properties: Mapping[str, str]) -> tuple[Origin, str]:
    """The origin and the reason. Raises ValueError for properties of another message."""
    try:
        numbers = [int(properties[name]) for name in (QUEUE_ID, QUEUE_OFFSET, PHYSICAL_OFFSET)]
        return Origin(properties[SERVICE], properties.get(TOPIC, ""), *numbers), properties.get(REASON, "")
    except KeyError as error:
        raise ValueError(f"the message has no property {error}") from error
