"""One append in the form for the journal and the queues."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from rmqkit.model.message import PutMessage
from rmqkit.model.run import looks
from rmqkit.protocol.packed import PackedRun
from rmqkit_store_lmdb.read.columns import timed_units
from rmqkit_store_lmdb.read.queues import Queue


@define
class Packed:
    """One append. `end` is the log position after it, with `gap_bytes` after the last record, which are blank
    in the log of another broker; `pieces` are records that lie side by side, one or more each, and `offsets`
    where they begin in the log; `codes` has the tags code of each record; `made` are new queues, `units` the
    new units of each queue, packed (layout.UNIT)."""

    end: int
    offsets: list[int] = field(factory=list)
    pieces: list[bytes] = field(factory=list)
    codes: list[int] = field(factory=list)
    made: dict[tuple[str, int], Queue] = field(factory=dict)
    units: dict[Queue, bytearray] = field(factory=dict)
    #: Start of the log if it was empty and does not begin at its end.
    start: int | None = None
    gap_bytes: int = 0
    #: Queues that start again in this append.
    replaced: list[Queue] = field(factory=list)

    @classmethod
    def of(
        cls,
        run: PackedRun[Queue],
        messages: Sequence[PutMessage],
        made: dict[tuple[str, int], Queue],
        now_ms: int,
    ) -> Packed:
        """Create an append from a packed run of messages."""
        units = {queue: bytearray(timed_units(own, now_ms)) for queue, own in run.units.items()}
        return cls(run.end, *run.stretches(), looks.tags_codes_of(messages), made, units)
