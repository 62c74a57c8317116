"""The file timercheck: how far timers have come (store-format sheet, section 10.7; Java: TimerCheckpoint).

Apache's seven numbers are followed by some of this build, which name one moment exactly. They count only
together with the numbers that they repeat: after a run of Apache's broker they are of an earlier moment.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from rmqkit.errors import DecodeError
from rmqkit_timer.units import NOWHERE

_NUMBERS: Final = Struct(">7q")
_OWN: Final = Struct(">8s3q6q")
_OWN_MAGIC: Final = b"rmqkit 1"
#: The size of the file, and of a master's answer to a Java slave.
FILE_BYTES: Final = 4_096
WIRE_BYTES: Final = _NUMBERS.size


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of the timers of a master.

    unit_position    the last unit of the slot being read whose message was delivered; NOWHERE at its start
    deliveries_from  offset of the broker's log from which the deliveries that came later are
    slot_from        the same of all deliveries of the slot being read
    broker_end       the end of the broker's log
    precision_ms     of the wheel
    log_end          position in the timer log behind the last unit of a message before the queue offset;
                     NOWHERE in the copy of another broker's checkpoint, whose wheel and log are not here
    """

    unit_position: int = NOWHERE
    deliveries_from: int = 0
    slot_from: int = 0
    broker_end: int = 0
    precision_ms: int = 0
    log_end: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far timers have come.

    read_time_ms       the slot that is read next; all before it are delivered
    log_position       before it the timer log is on the device
    queue_offset       of the first message of the timer topic that is not in the log
    master_queue_offset  the same of the master; on a master equal
    state_version, timestamp_ms, counter  Java's data version
    moment             None in a file that Apache's broker wrote last
    """

    read_time_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0
    moment: Moment | None = None


def encode(found: Checkpoint) -> bytes:
    """The bytes of a checkpoint, in the file and in a master's answer."""
    data = _NUMBERS.pack(
        found.read_time_ms,
        found.log_position,
        found.queue_offset,
        found.master_queue_offset,
        found.state_version,
        found.timestamp_ms,
        found.counter,
    )
    own = found.moment
    if own is None:
        return data + bytes(_OWN.size)
    repeated = found.read_time_ms, found.log_position, found.queue_offset
    return data + _OWN.pack(_OWN_MAGIC, *repeated, *msgspec.structs.astuple(own))


def decode(data: bytes) -> Checkpoint:
    """What a file or a master's answer says. Raises DecodeError when it is cut short."""
    if len(data) < _NUMBERS.size:
        raise DecodeError(f"a timer checkpoint has {_NUMBERS.size} bytes or more, not {len(data)}")
    names = Checkpoint.__struct_fields__[:7]
    found = Checkpoint(**dict(zip(names, _NUMBERS.unpack_from(data), strict=True)))
    if len(data) < _NUMBERS.size + _OWN.size:
        return found
    magic, *numbers = _OWN.unpack_from(data, _NUMBERS.size)
    if magic != _OWN_MAGIC or numbers[:3] != [found.read_time_ms, found.log_position, found.queue_offset]:
        return found
    moment = Moment(**dict(zip(Moment.__struct_fields__, numbers[3:], strict=True)))
    return msgspec.structs.replace(found, moment=moment)


def read(path: Path) -> Checkpoint | None:
    """What a file says; None when there is none. Raises DecodeError, OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data)


def write(path: Path, found: Checkpoint) -> None:
    """Write through to the device, in place: the numbers are within one sector. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(descriptor).st_size != FILE_BYTES:
            os.ftruncate(descriptor, FILE_BYTES)
        os.pwrite(descriptor, encode(found), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
