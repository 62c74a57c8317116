"""Records skipped by reads because there is no record where a queue or the index points."""

from __future__ import annotations

from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit.protocol.damage import DAMAGE_FLAG, LOOK
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2
from rmqkit.toolkit import read_faults

MAGICS = frozenset((MAGIC_V1, MAGIC_V2))
#: Size, magic, flag, log offset and system flag of a record.
look = LOOK.unpack_from


class ReadFaults(read_faults.ReadFaults):
    """The damaged places of the log and its queues."""

    def is_sound(self, head: tuple[int, int, int, int, int], offset: int, size_bytes: int) -> bool:
        """Whether the head of a record (the result of `look`) matches a unit with this log offset and size.
        Only cheap checks are made; recovery, `rmqkit store verify` and clients check the body. A mismatch is
        noted, unless a recovery replaced damage there, which was logged then."""
        size, magic, flag, claimed, sys_flag = head
        rolled_back = sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        if size == size_bytes and claimed == offset and magic in MAGICS and not rolled_back:
            return True
        if not (rolled_back and flag == DAMAGE_FLAG):
            self.note(
                offset,
                "the log is damaged at offset %d: no record of %d bytes is there, readers are led past it",
                offset,
                size_bytes,
            )
        return False
