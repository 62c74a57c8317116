"""Messages of a store directory as plain documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rmqkit.errors import StoreCorrupt, StoreError
from rmqkit.model import properties as props
from rmqkit.toolkit.document import broken_document, document
from rmqkit_store_mmap.readonly.readonly import StoreReader, decoded


def export(
    store: StoreReader,
    topic: str,
    queue_ids: Sequence[int],
    start: int,
    stop: int | None,
    tag: str | None,
    decompress: bool,
) -> Iterator[dict[str, Any]]:
    """The messages of the given queues (default: all), queue by queue, offsets [start, stop), filtered by tag
    if one is given.

    A record that is damaged or does not match its queue is given with a fault. Raises StoreError when topic
    or queue does not exist, OSError.
    """
    there = store.topics().get(topic)
    if there is None:
        raise StoreError(f"{store.root} has no topic {topic!r}; see `rmqkit store inspect {store.root}`")
    for queue_id in queue_ids or there:
        for unit, record in store.records(topic, queue_id, start, stop):
            try:
                message = decoded(unit, record, "damaged")
            except StoreCorrupt as error:
                yield broken_document(
                    topic, queue_id, unit.queue_offset, unit.physical_offset, record, str(error)
                )
                continue
            if tag is None or message.properties.get(props.TAGS) == tag:
                yield document(message, decompress)
