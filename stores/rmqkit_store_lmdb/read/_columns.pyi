from collections.abc import Sequence

from rmqkit.model.buffer import Buffer
from rmqkit.protocol.record_packer import KeyNote
from rmqkit_store_lmdb.read.columns import Caps

def timed_units(units: bytes, time_ms: int) -> bytes: ...
def copied_records(
    units: Buffer, first: int, base: int, data: Buffer, caps: Caps, count: int, size_bytes: int
) -> tuple[int, int, bytes]: ...
def key_numbers(notes: Sequence[KeyNote], base: int) -> bytes: ...
