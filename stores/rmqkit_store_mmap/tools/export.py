"""Messages of a store directory as plain documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rmqkit.errors import StoreError
from rmqkit.model import properties as props
from rmqkit.plugin.document import document
from rmqkit_store_mmap.readonly.readonly import StoreReader


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

    Raises StoreError when topic or queue does not exist, StoreCorrupt at a damaged record, OSError.
    """
    there = store.topics().get(topic)
    if there is None:
        raise StoreError(f"{store.root} has no topic {topic!r}; see `rmqkit store inspect {store.root}`")
    for queue_id in queue_ids or there:
        for message in store.messages(topic, queue_id, start, stop):
            if tag is None or message.properties.get(props.TAGS) == tag:
                yield document(message, decompress)
