from collections.abc import Sequence

from rmqkit_store_mmap.index.entries import Note
from rmqkit_store_mmap.received import Begin, QueueUnits

def sound_end(data: memoryview, at: int, stop: int, offset: int) -> tuple[int, int]: ...
def good_end(
    data: memoryview, at: int, stop: int, offset: int, check_bodies: bool
) -> tuple[int, int, int]: ...
def plain_units(
    data: memoryview, at: int, stop: int, offset: int, begin: Begin
) -> tuple[int, Sequence[QueueUnits], Sequence[Note]]: ...
