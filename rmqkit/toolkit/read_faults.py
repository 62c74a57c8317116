"""Damage that reads of a store meet: each place is logged and counted once, and readers are led past it."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from pathlib import Path

from rmqkit.errors import DecodeError
from rmqkit.model.buffer import Buffer
from rmqkit.protocol.record import has_intact_body, peek_place, peek_size_and_magic

_log = logging.getLogger(__name__)

#: Maximum number of places that are logged, and that are remembered. Further ones are neither.
MAX_PLACES = 256
#: Bytes of one read whose checksums are computed: it is done in the event loop. Readers check the rest.
CHECKED_BYTES = 64 * 1024


class ReadFaults:
    """The damaged places of a store; `count` is their number."""

    def __init__(self, directory: Path) -> None:
        self.places: set[Hashable] = set()
        self._directory = directory

    @property
    def count(self) -> int:
        return len(self.places)

    def note(self, place: Hashable, what: str, *values: object) -> None:
        """Log and count a damaged place; `what` says with `values` what is wrong there."""
        if place in self.places or len(self.places) >= MAX_PLACES:
            return
        self.places.add(place)
        text = what % values
        _log.error("%s: %s; `rmqkit store verify` shows what is wrong", self._directory, text)
        if len(self.places) == MAX_PLACES:
            _log.error("%s: further damaged places are neither logged nor counted", self._directory)

    def note_unit(self, queue: str, queue_offset: int, offset: int, size_bytes: int) -> None:
        """A unit of a queue refers to nothing."""
        self.note(
            (queue, queue_offset),
            "queue %s is damaged at offset %d: its unit names %d bytes at log offset %d, where no record is;"
            " readers are led past it",
            queue,
            queue_offset,
            size_bytes,
            offset,
        )

    def check_bodies(self, slices: Iterable[Buffer]) -> None:
        """Note the records of a read whose bodies do not match their checksums; they are given to the reader
        as they are, who finds out as well. At most CHECKED_BYTES, but one record, are looked at."""
        left = CHECKED_BYTES
        for data in slices:
            at = 0
            while at < len(data) and left > 0:
                try:
                    size = peek_size_and_magic(data, at)[0]
                    intact = has_intact_body(data, at)
                    offset = peek_place(data, at).physical_offset
                except DecodeError:
                    return
                if not intact:
                    self.note(
                        offset,
                        "the body of the record at log offset %d does not match its checksum; readers get it"
                        " as it is",
                        offset,
                    )
                at += size
                left -= size
