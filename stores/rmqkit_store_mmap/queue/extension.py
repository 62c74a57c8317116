"""The extension of one consume queue (store-format sheet, section 3.6; Java: ConsumeQueueExt).

A unit of the queue has the address of a unit of the extension in place of its tags code, which is in the
extension:

      at  size  field
       0     2  size of this unit, at least 20; -1: nothing more in this file
       2     8  tags code
      10     8  store time in ms
      18     2  bytes of the bit map
      20     n  bit map: the bits of the groups whose filters match the message

Files are `consumequeue_ext/TOPIC/QUEUEID/`; an address is the offset of a unit minus 2^63. A unit never
crosses files, and the last 4 bytes of a file are not used. The extension is a hint: where it cannot be
written, a unit of the queue keeps its tags code, and where it cannot be read, the message counts as matching.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct

from attrs import frozen

from rmqkit.errors import StoreCorrupt
from rmqkit.plugin.queue_code import LOWEST_CODE
from rmqkit.plugin.store import ExtensionFilter, NotInMemory, UnitExtension, UnitFilter
from rmqkit_store_mmap.cold import FileRange
from rmqkit_store_mmap.log.disk import Disk, create_file, delete_file, zero_range
from rmqkit_store_mmap.log.segment import offset_name
from rmqkit_store_mmap.queue.units import UNIT, UNIT_BYTES
from rmqkit_store_mmap.readonly.data_files import file_row, usual_size

_log = logging.getLogger(__name__)

#: Its name in a store directory.
DIRECTORY = "consumequeue_ext"
_HEAD = Struct(">hqqh")
_FILE_END = Struct(">h").pack(-1)
_UNUSED_BYTES = 4
_MAX_UNIT_BYTES = (1 << 15) - 1
_ADDRESSES_FROM = -(1 << 63)
#: Offsets must be less, so that no address looks like a tags code.
_OFFSETS_END = LOWEST_CODE - _ADDRESSES_FROM
#: Bytes read together, at least one unit: those of adjacent units of the queue are adjacent.
_BLOCK_BYTES = 32 * 1024

LookUp = Callable[[int], UnitExtension | None]


@frozen
class Extensions:
    """The extensions of all queues of a store. `written`: new units get one (enableConsumeQueueExt); else
    those in the directory are only read."""

    directory: Path
    file_bytes: int
    written: bool

    def of(self, topic: str, queue_id: int, disk: Disk) -> QueueExtension | None:
        place = f"{self.directory}/{topic}/{queue_id}"
        if not self.written and not os.path.isdir(place):
            return None
        return QueueExtension(Path(place), self.file_bytes, disk, written=self.written)

    def forget_topic(self, topic: str) -> None:
        """Delete what is left of a topic without queues. Raises OSError."""
        if (self.directory / topic).is_dir():
            shutil.rmtree(self.directory / topic)


def reader(root: Path, topic: str, queue_id: int) -> LookUp:
    """`QueueExtension.look_up` for the files of a store directory, whatever their length. It waits for the
    device, and is for tools."""
    directory, disk = root / DIRECTORY / topic / str(queue_id), Disk()
    disk.reads_block = True
    file_bytes = usual_size([file_row(directory).files])
    if not file_bytes:
        return lambda address: None
    return QueueExtension(directory, file_bytes, disk, written=False).look_up()


class QueueExtension:
    """`written`: whether the queue's new units get units here. `position`: the offset of the next one, None
    until the owner has called `begin_behind`."""

    def __init__(self, directory: Path, file_bytes: int, disk: Disk, *, written: bool) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.written = written
        self.position: int | None = None
        self._disk = disk
        self._unflushed: dict[Path, None] = {}
        self._failing = False

    # --- reading --------------------------------------------------------------------------------------------

    def look_up(self) -> LookUp:
        """A function for one read of the queue: address -> what is there, None if there is no unit. It raises
        NotInMemory, OSError."""
        block, block_at = b"", 0

        def unit_at(address: int) -> UnitExtension | None:
            nonlocal block, block_at
            offset = address - _ADDRESSES_FROM
            found = _parse(block, offset - block_at) if offset >= block_at else None
            if found is None:
                block, block_at = self._block(offset), offset
                found = _parse(block, 0)
            return found

        return unit_at

    def _block(self, offset: int) -> bytes:
        """Bytes from an offset on, at least one unit if there is one."""
        at = offset % self.file_bytes
        path = self._path(offset - at)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            stop = min(os.lseek(fd, at, os.SEEK_HOLE), at + _BLOCK_BYTES)
            data = self._disk.read(fd, at, stop) if at < stop else b""
        except OSError:
            if at < os.fstat(fd).st_size:
                raise
            return b""
        finally:
            os.close(fd)
        if data is None:
            raise NotInMemory(FileRange(path, at, stop))
        return bytes(data)

    def filter(self, unit_filter: UnitFilter) -> UnitFilter:
        """The filter for the units of one read of the queue. It raises what `unit_filter` raises,
        NotInMemory, OSError."""
        unit_at = self.look_up()
        extended = unit_filter.extended if isinstance(unit_filter, ExtensionFilter) else None

        def passes(tags_code: int) -> bool:
            if tags_code >= LOWEST_CODE:
                return unit_filter(tags_code)
            found = unit_at(tags_code)
            if found is None:
                return True
            return unit_filter(found.tags_code) if extended is None else extended(found)

        return passes

    # --- writing --------------------------------------------------------------------------------------------

    def extend(self, units: bytes, store_time_ms: int, bit_maps: Sequence[bytes] = ()) -> bytes:
        """Write the extensions of packed units of the queue. Returns these units with their addresses, or
        unchanged where they cannot be written, which is logged."""
        position = self.position
        try:
            if position is None:
                position = self.begin_behind(None)
            extended = self._write(units, store_time_ms, bit_maps, position)
        except OSError as error:
            if not self._failing:
                _log.error("%s is not written, new units have no extension: %s", self.directory, error)
            self._failing = True
            return units
        self._failing = False
        return extended

    def _write(self, units: bytes, store_time_ms: int, bit_maps: Sequence[bytes], at: int) -> bytes:
        file_bytes, made, pieces = self.file_bytes, bytearray(), [(at, bytearray())]
        for number, (offset, size_bytes, code) in enumerate(UNIT.iter_unpack(units)):
            bits = bit_maps[number] if bit_maps else b""
            size = _HEAD.size + len(bits)
            room = file_bytes - _UNUSED_BYTES - at % file_bytes
            if size > room and size <= file_bytes - _UNUSED_BYTES:
                if at % file_bytes:
                    pieces[-1][1].extend(_FILE_END)
                    at += file_bytes - at % file_bytes
                pieces.append((at, bytearray()))
                room = file_bytes - _UNUSED_BYTES
            if size > min(room, _MAX_UNIT_BYTES) or at + size > _OFFSETS_END:
                made += UNIT.pack(offset, size_bytes, code)
                continue
            pieces[-1][1].extend(_HEAD.pack(size, code, store_time_ms, len(bits)) + bits)
            made += UNIT.pack(offset, size_bytes, at + _ADDRESSES_FROM)
            at += size
        for start, data in pieces:
            if data:
                self._write_piece(start, data)
        self.position = at
        return bytes(made)

    def _write_piece(self, offset: int, data: bytearray) -> None:
        at = offset % self.file_bytes
        path = self._path(offset - at)
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._unflushed |= dict.fromkeys((self.directory, *list(self.directory.parents)[:3]))
        fd = create_file(path, self.file_bytes)
        try:
            self._disk.write(fd, (bytes(data),), at)
        finally:
            os.close(fd)
        self._unflushed[path] = None

    def unflushed_files(self) -> list[Path]:
        """The paths to flush for everything written before to be on the device; forgets them."""
        paths = list(self._unflushed)
        self._unflushed = {}
        return paths

    # --- files ----------------------------------------------------------------------------------------------

    def check_files(self) -> None:
        """Delete empty files. Raises StoreCorrupt for a file of another length than the settings say."""
        for base, length in self._files():
            if length == 0:
                self._path(base).unlink()
            elif length != self.file_bytes:
                raise StoreCorrupt(
                    f"{self._path(base)} has {length} bytes, the setting mappedFileSizeConsumeQueueExt says"
                    f" {self.file_bytes}"
                )

    def begin_behind(self, last_address: int | None) -> int:
        """Let the next unit follow the one at the last address in the queue, None without addresses; remove
        what is behind it. Returns the position. Raises OSError. Blocks."""
        position = 0
        if last_address is not None:
            position = last_address - _ADDRESSES_FROM
            found = _parse(self._block(position), 0)
            if found is None:
                position += self.file_bytes - position % self.file_bytes
            else:
                position += _HEAD.size + len(found.bit_map)
        for base, _ in self._files():
            if base >= position:
                self._path(base).unlink()
            elif base + self.file_bytes > position:
                fd = os.open(self._path(base), os.O_RDWR | os.O_CLOEXEC)
                try:
                    if zero_range(fd, position - base, self.file_bytes):
                        self._unflushed[self._path(base)] = None
                finally:
                    os.close(fd)
        self.position = position
        return position

    def trim(self, first_address: int, directory_fd: int) -> tuple[int, int]:
        """Delete the files before the one of the first address in the queue; returns the numbers of files and
        bytes. Raises OSError."""
        start = first_address - _ADDRESSES_FROM
        dead = [self._path(base) for base, _ in self._files() if base + self.file_bytes <= start]
        return len(dead), sum(delete_file(path, directory_fd) for path in dead)

    def destroy(self) -> None:
        """Delete all files. Raises OSError."""
        if self.directory.is_dir():
            shutil.rmtree(self.directory)
        self.position = 0
        self._unflushed = {}

    def _files(self) -> list[tuple[int, int]]:
        """Start offsets and lengths of the files."""
        if not self.directory.is_dir():
            return []
        with os.scandir(self.directory) as entries:
            return sorted(
                (int(entry.name), entry.stat().st_size)
                for entry in entries
                if entry.name.isascii() and entry.name.isdigit()
            )

    def _path(self, base: int) -> Path:
        return self.directory / offset_name(base)


def last_address(units: bytes | bytearray) -> int | None:
    """The last address among packed units of a queue."""
    for at in range(len(units) - UNIT_BYTES, -1, -UNIT_BYTES):
        code: int = UNIT.unpack_from(units, at)[2]
        if code < LOWEST_CODE:
            return code
    return None


def _parse(data: bytes, at: int) -> UnitExtension | None:
    """The unit at a place of some bytes, None if there is no whole one."""
    if at + _HEAD.size > len(data):
        return None
    size, tags_code, store_time_ms, bit_map_bytes = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + bit_map_bytes
    if bit_map_bytes < 0 or size != _HEAD.size + bit_map_bytes or end > len(data):
        return None
    return UnitExtension(tags_code, store_time_ms, data[at + _HEAD.size : end])
