"""Half messages that rounds have stored anew: a producer may name an earlier place than the present one."""

from __future__ import annotations

from rmqkit_transaction.half_topics.ended import Ended
from rmqkit_transaction.limits import MAX_MOVED


class Moved:
    """Queue offsets of earlier copies, with the queue offset and the log offset of a later one; the newest
    MAX_MOVED are kept."""

    def __init__(self) -> None:
        self._later: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._later)

    def move(self, offset: int, to_offset: int, to_physical_offset: int) -> None:
        """Note that the half message at a queue offset was stored anew, further on."""
        self._later[offset] = to_offset, to_physical_offset
        if len(self._later) > MAX_MOVED:
            del self._later[next(iter(self._later))]

    def place(self, offset: int, physical_offset: int) -> tuple[int, int]:
        """The present place of a half message that was stored at this one. It may have ended."""
        found = offset, physical_offset
        while (later := self._later.get(found[0])) is not None:
            found = later
        if found[0] != offset:
            # The next question is answered in one step.
            self._later[offset] = found
        return found

    def forget(self, ended: Ended) -> None:
        """Forget the places of those that have ended."""
        gone = [each for each in self._later if ended.has_ended(self.place(each, 0)[0])]
        for each in gone:
            del self._later[each]
