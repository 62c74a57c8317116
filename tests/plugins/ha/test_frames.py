"""The bytes of the replication protocol, cut anywhere."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import ProtocolError
from rmqkit_ha.frames import Frames, Piece, RecordAssembler, Reports, confirmed_frame, frame_head, report


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """The bytes in pieces of any size."""
    parts, at = [], 0
    while at < len(data):
        size = rng.randrange(1, 40)
        parts.append(data[at : at + size])
        at += size
    return parts


def record(size: int) -> bytes:
    """Bytes with the length of a record before them."""
    return struct.pack(">i", size) + b"r" * (size - 4)


@pytest.mark.row("S271")
@given(st.lists(st.integers(0, 1 << 62), min_size=1), st.randoms())
def test_the_newest_whole_report_counts(offsets: list[int], rng: random.Random) -> None:
    """Reports are i64, and of those that arrived together the last whole one is taken."""
    reports, newest = Reports(), None
    for part in cut(b"".join(map(report, offsets)), rng):
        found = reports.feed(part)
        newest = newest if found is None else found
    assert newest == offsets[-1]
    assert reports.feed(report(7)[:5]) is None
    assert reports.feed(report(7)[5:] + report(8) + report(9)[:1]) == 8


@pytest.mark.row("S276")
@given(st.lists(st.binary(max_size=90)), st.randoms())
def test_frames_are_cut_out_of_any_bytes(bodies: list[bytes], rng: random.Random) -> None:
    """A frame is i64 offset, i32 size and so many bytes; one without bytes is a heartbeat."""
    sent, at = b"", 100
    for body in bodies:
        sent += frame_head(at, len(body)) + body
        at += len(body)
    frames = Frames(1_000)
    pieces = [
        Piece(piece.offset, bytes(piece.data)) for part in cut(sent, rng) for piece in frames.feed(part)
    ]
    assert b"".join(piece.data for piece in pieces) == b"".join(bodies)
    assert sum(not piece.data for piece in pieces) == bodies.count(b"")
    place = 100
    for piece in pieces:
        assert piece.offset == place
        place += len(piece.data)


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 1 << 40)), max_size=20), st.randoms())
def test_a_member_is_told_what_is_confirmed(sent: list[bytes | int], rng: random.Random) -> None:
    """Between the frames of the log, from which such frames take nothing away."""
    data, at = b"", 0
    for each in sent:
        if isinstance(each, int):
            data += confirmed_frame(each)
        else:
            data += frame_head(at, len(each)) + each
            at += len(each)
    frames = Frames(1_000, is_elected=True)
    pieces = [bytes(piece.data) for part in cut(data, rng) for piece in frames.feed(part)]
    told = [each for each in sent if isinstance(each, int)]
    assert b"".join(pieces) == b"".join(each for each in sent if isinstance(each, bytes))
    assert frames.confirmed == (told[-1] if told else None)
    with pytest.raises(ProtocolError, match="no master sends"):
        list(Frames(1_000).feed(confirmed_frame(7)))
    with pytest.raises(ProtocolError, match="no master sends"):
        list(Frames(1_000, is_elected=True).feed(frame_head(7, -2)))


@pytest.mark.parametrize("head", [(-1, 0), (0, -1), (0, 1_001), (1 << 62, 1 << 30)])
def test_a_head_that_no_master_sends(head: tuple[int, int]) -> None:
    """Negative numbers and sizes beyond the limit are an error, before anything is kept."""
    with pytest.raises(ProtocolError, match="no master sends"):
        list(Frames(1_000).feed(frame_head(*head)))


@given(st.lists(st.integers(8, 500), min_size=1), st.randoms())
def test_whole_records_come_out(sizes: list[int], rng: random.Random) -> None:
    """Whatever the pieces, what comes out are whole records, in order, without gaps."""
    log = b"".join(map(record, sizes))
    assembler, out, at = RecordAssembler(1_000, 500), b"", 1_000
    ends = {sum(sizes[:count]) for count in range(len(sizes) + 1)}
    for part in cut(log, rng):
        assembler.add(Piece(at, part))
        at += len(part)
        begin, data = assembler.take()
        assert not data or begin == 1_000 + len(out)
        out += data
        assert len(out) in ends
    assert out == log
    assert assembler.end == at


def test_a_piece_of_another_place() -> None:
    """The pieces must follow each other."""
    assembler = RecordAssembler(100, 500)
    assembler.add(Piece(100, b""))
    with pytest.raises(ProtocolError, match="from 101 on, and this one ends at 100"):
        assembler.add(Piece(101, b"x"))


@pytest.mark.parametrize("size", [-1, 0, 7, 501])
def test_a_length_that_no_record_has(size: int) -> None:
    """Such a length is an error at once, so that nothing is collected in vain."""
    assembler = RecordAssembler(0, 500)
    assembler.add(Piece(0, struct.pack(">ii", size, 0)))
    with pytest.raises(ProtocolError, match=f"a record of {size} bytes"):
        assembler.take()
