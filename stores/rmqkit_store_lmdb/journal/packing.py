"""One append in the form for the journal and the queues."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from rmqkit.model.message import PutMessage
from rmqkit.model.run import tags_codes_of
from rmqkit.protocol.record_packer import UNIT, PackedRun
from rmqkit_store_lmdb.read.queues import Entry, Queue


@define
class Packed:
    """One append. `end` is the log position after it, with `gap_bytes` after the last record, which are blank
    in the log of another broker; `made` are new queues, `units` the new units of each queue."""

    end: int
    offsets: list[int] = field(factory=list)
    records: list[bytes] = field(factory=list)
    codes: list[int] = field(factory=list)
    made: dict[tuple[str, int], Queue] = field(factory=dict)
    units: dict[Queue, list[Entry]] = field(factory=dict)
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
        offsets, records = [at[1] for at in run.landed], run.records()
        packed = cls(run.end, offsets, records, tags_codes_of(messages), made)
        record_at = dict(zip(offsets, records, strict=True))
        for queue, units in run.units.items():
            packed.units[queue] = [
                (at, size, code, now_ms, record_at[at]) for at, size, code in UNIT.iter_unpack(units)
            ]
        return packed
