"""Queue codes: the 8 bytes that a unit of a consume queue carries besides offset and size
(store-format sheet, section 3.2).

The code of most topics is the hash of a message's tags, by which pulls filter. A plugin may register another
function for a topic of its own, as delay levels do for SCHEDULE_TOPIC_XXXX, where a unit carries the time of
delivery. A code depends on a message's properties and its recorded store time alone, so append, recovery,
replay, copies and `rmqkit store verify` compute the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from rmqkit.model.properties import TAGS
from rmqkit.protocol.tags import tags_code

#: The code of a message, a signed 64-bit number, from its properties and its store time in ms. Must neither
#: block nor raise, whatever the properties hold.
QueueCode = Callable[[Mapping[str, str], int], int]
#: Functions by topic; a topic without one has `tag_code`.
QueueCodes = Mapping[str, QueueCode]
#: The least hash of tags. Smaller codes are addresses in the extension of Apache's queues
#: (enableConsumeQueueExt).
LOWEST_CODE: Final = -(1 << 31)
NO_QUEUE_CODES: Final[QueueCodes] = MappingProxyType({})


def tag_code(properties: Mapping[str, str], store_timestamp_ms: int) -> int:
    """The code of ordinary topics: the hash of the tags, 0 without tags."""
    return tags_code(properties.get(TAGS))


def queue_code(codes: QueueCodes, topic: str, properties: Mapping[str, str], store_timestamp_ms: int) -> int:
    """The code of a stored message."""
    return codes.get(topic, tag_code)(properties, store_timestamp_ms)
