"""Every record read is checked, and every fault of an answer is counted as an error."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from benchmarks.load import pulling
from benchmarks.load.frames import FIRST_OPAQUE, FRAME_HEAD, LoadError, frame
from benchmarks.load.pulling import BUFFER_BYTES, Puller, run_pull
from benchmarks.load.tally import Tally
from tests.benchmarks.answers import answer, found, opaque_of, record


class Line:
    """A puller with a request in flight, and the server's end of its connection."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.ours, self.server = socket.socketpair()
        self.tally = Tally()
        self.puller = Puller(self.ours, "T", 2, 32, self.tally, deadline)
        self.puller.ask_more()

    def close(self) -> None:
        self.ours.close()
        self.server.close()

    def asked(self) -> dict[str, str]:
        """The fields of the received request."""
        request = self.server.recv(10_000)
        self.opaque = opaque_of(request)
        fields: dict[str, str] = json.loads(request[FRAME_HEAD.size :])["extFields"]
        return fields

    def say(self, data: bytes, step: int = 100_000) -> None:
        for at in range(0, len(data), step):
            self.server.sendall(data[at : at + step])
            self.puller.readable()


@pytest.fixture
def line() -> Iterator[Line]:
    with closing(Line()) as made:
        yield made


def test_a_queue_is_read_to_the_end_it_had_at_first(line: Line) -> None:
    """Each request continues after the last answer; messages stored later are not read."""
    assert line.asked()["queueOffset"] == "0"
    line.say(found(line.opaque, b"".join(map(record, range(32))), 32, 40))
    fields = line.asked()
    assert (fields["queueOffset"], fields["queueId"], fields["maxMsgNums"], fields["topic"]) == (
        "32",
        "2",
        "32",
        "T",
    )
    line.say(found(line.opaque, b"".join(map(record, range(32, 40))), 40, 90))
    assert line.puller.done
    assert line.puller.whole
    assert (line.puller.messages, line.puller.record_bytes, line.tally.errors) == (40, 8000, 0)
    assert len(line.tally.latencies) == line.tally.requests == 2


def test_records_of_different_sizes_are_walked(line: Line) -> None:
    """The last answer of a queue may also end with a longer record."""
    line.asked()
    line.say(found(line.opaque, record(0, 100) + record(1, 300) + record(2, 200), 3, 3))
    assert (line.puller.messages, line.puller.record_bytes, line.tally.errors, line.puller.done) == (
        3,
        600,
        0,
        True,
    )


@pytest.mark.parametrize("step", [1, 3, 7, 8, 100, 101, 2000])
def test_an_answer_may_come_in_any_pieces(line: Line, step: int) -> None:
    """An answer is checked when it is complete."""
    line.asked()
    line.say(found(line.opaque, b"".join(map(record, range(5))), 5, 5), step)
    assert (line.puller.messages, line.tally.errors, line.puller.done) == (5, 0, True)


def test_an_answer_may_be_larger_than_the_buffer(line: Line) -> None:
    """The buffer grows and keeps its content."""
    line.asked()
    size = BUFFER_BYTES // 4
    line.say(found(line.opaque, b"".join(record(index, size) for index in range(6)), 6, 6), 50_000)
    assert (line.puller.messages, line.puller.record_bytes, line.tally.errors) == (6, 6 * size, 0)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (record(0) + record(2) + record(3), "offset 2; expected offset 1"),
        (record(1) + record(2) + record(3), "offset 1; expected offset 0"),
        (record(0) + record(1, magic=0xBBCCDDEE) + record(2), "magic 0xbbccddee"),
        (record(0) + record(1) + record(2)[:-1], "record of 200 bytes"),
        (record(0) + record(1) + record(2)[:20], "record of 20 bytes"),
        (record(0) + record(1, size=28) + bytes(172) + record(2), "record of 0 bytes"),
        (record(0, 200)[:4] + record(0)[4:] + b"\0\0\0\x08" + record(1)[4:], "record of 8 bytes"),
        (b"", "nextBeginOffset 3 after records 0..-1"),
        (record(0) + record(1), "nextBeginOffset 3 after records 0..1"),
    ],
)
def test_records_that_do_not_follow_one_another_are_an_error(line: Line, records: bytes, error: str) -> None:
    """Wrong queue offsets, magic, sizes and next offsets are errors."""
    line.asked()
    line.say(found(line.opaque, records, 3, 100))
    assert line.puller.done
    assert line.tally.errors >= 1
    assert any(error in text for text in line.tally.first_errors), line.tally.first_errors


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda opaque: answer(opaque, code=24, remark="no such group"), "code 24: no such group"),
        (lambda opaque: found(opaque + 1, record(0), 1, 1), f"in the response to {FIRST_OPAQUE + 1}"),
    ],
    ids=["refused", "another's"],
)
def test_a_refusal_and_an_answer_to_another_request_are_errors(
    line: Line, make: Callable[[int], bytes], error: str
) -> None:
    """Such answers are errors, and none of their content is counted."""
    line.asked()
    line.say(make(line.opaque))
    assert line.puller.done
    assert error in line.tally.first_errors[0]
    assert (line.puller.messages, line.tally.errors) == (0, 1)


@pytest.mark.parametrize(
    "head",
    [FRAME_HEAD.pack(3, 0), FRAME_HEAD.pack(1 << 30, 10), FRAME_HEAD.pack(20, 17)],
    ids=["short", "huge", "lying"],
)
def test_what_is_not_the_protocol_ends_the_run(line: Line, head: bytes) -> None:
    """Invalid bytes end the run before memory is allocated for them."""
    with pytest.raises(LoadError):
        line.say(head)


def test_bytes_that_no_request_caused_end_the_run(line: Line) -> None:
    """A second answer to one request ends the run."""
    line.asked()
    with pytest.raises(LoadError, match="that no request caused"):
        line.say(found(line.opaque, record(0), 1, 2) + frame(b"{}"))


def test_an_empty_queue_is_done_at_once(line: Line) -> None:
    """PULL_NOT_FOUND is the end of the queue, not an error."""
    line.asked()
    line.say(
        answer(line.opaque, code=19, extFields={"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"})
    )
    assert (line.puller.done, line.puller.whole, line.tally.errors) == (True, True, 0)


def test_reading_stops_when_its_time_is_over() -> None:
    """Records read in time are counted, and the result is marked as incomplete."""
    with closing(Line(deadline=0.0)) as line:
        line.asked()
        line.say(found(line.opaque, record(0), 1, 2))
        assert (line.puller.done, line.puller.whole, line.puller.messages, line.tally.errors) == (
            True,
            False,
            1,
            0,
        )


def test_a_server_that_goes_away_ends_the_run(line: Line) -> None:
    """The error names the server."""
    line.server.shutdown(socket.SHUT_WR)
    with pytest.raises(LoadError, match="at offset 0 of queue 2"):
        line.puller.readable()


def test_silence_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is reported as an error."""
    monkeypatch.setattr(pulling, "SILENCE_S", 0.01)
    with closing(Line()) as line:
        run_pull([line.puller])
        assert line.tally.first_errors == ["no answer to a pull"]
