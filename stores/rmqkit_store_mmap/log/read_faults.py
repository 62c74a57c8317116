"""Records skipped by reads because there is no record where a queue or the index points."""

from __future__ import annotations

import logging
from pathlib import Path

from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit.protocol.damage import DAMAGE_FLAG, LOOK
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2

_log = logging.getLogger(__name__)

MAGICS = frozenset((MAGIC_V1, MAGIC_V2))
#: Maximum number of places that are logged and remembered; further ones are only counted.
MAX_PLACES = 256
#: Size, magic, flag, log offset and system flag of a record.
look = LOOK.unpack_from


class ReadFaults:
    """`count` is the number of skipped reads, `places` their positions."""

    def __init__(self, directory: Path) -> None:
        self.count = 0
        self.places: set[int] = set()
        self._directory = directory

    def is_sound(self, head: tuple[int, int, int, int, int], offset: int, size_bytes: int) -> bool:
        """Whether the head of a record (the result of `look`) matches a unit with this log offset and size.
        Only cheap checks are made; recovery, `rmqkit store verify` and clients check the body. A mismatch is
        counted, and logged once per place, unless a recovery replaced damage there, which was logged then."""
        size, magic, flag, claimed, sys_flag = head
        rolled_back = sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        if size == size_bytes and claimed == offset and magic in MAGICS and not rolled_back:
            return True
        if not (rolled_back and flag == DAMAGE_FLAG):
            self.note(offset, size_bytes)
        return False

    def note(self, offset: int, size_bytes: int) -> None:
        """Count a read that skipped a missing record."""
        self.count += 1
        if offset in self.places or len(self.places) >= MAX_PLACES:
            return
        self.places.add(offset)
        _log.error(
            "the log %s is damaged at offset %d: no record of %d bytes is there, readers are led past it;"
            " `rmqkit store verify` shows what is wrong",
            self._directory,
            offset,
            size_bytes,
        )
        if len(self.places) == MAX_PLACES:
            _log.error("further damaged places in %s are counted only", self._directory)
