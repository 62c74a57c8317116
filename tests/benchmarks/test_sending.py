"""Every answer is checked: wrong answers are counted as errors, whichever way they are checked."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.load import sending
from benchmarks.load.frames import FIRST_OPAQUE, LoadError, Ring, SendShape, frame
from benchmarks.load.sending import Sender, learn, run_one_by_one, run_window
from benchmarks.load.tally import Budget, Tally
from tests.benchmarks.answers import answer, opaque_of, sent, split

SHAPE = SendShape("T", 20, 1, 4)
FIRST = 2_000_000_000


class Line:
    """A sender with `in_flight` outstanding requests, and the server's end of its connection."""

    def __init__(self, in_flight: int) -> None:
        ours, self.server = socket.socketpair()
        ours.setblocking(False)
        self.tally = Tally()
        self.sender = Sender(ours, Ring(SHAPE, 32), self.tally)
        self.opaques = list(range(FIRST, FIRST + in_flight))
        self.sender.fill([b"%d" % opaque for opaque in self.opaques], 0.0)

    def close(self) -> None:
        self.sender.sock.close()
        self.server.close()

    def say(self, *frames: bytes) -> int:
        """Send these in one piece and let the sender read once; returns the number of answered requests."""
        self.server.sendall(b"".join(frames))
        return self.sender.harvest()


@pytest.fixture
def line() -> Iterator[Line]:
    with closing(Line(10)) as made:
        yield made


def outcome(line: Line) -> tuple[int, int, int]:
    """Successes, errors, outstanding requests."""
    return len(line.tally.latencies), line.tally.errors, len(line.sender.outstanding)


def test_after_the_first_answer_of_a_form_the_others_are_compared(line: Line) -> None:
    """Of ten answers, one is decoded in full; a longer offset is another form."""
    assert line.say(*(sent(opaque, 900 + opaque % 10) for opaque in line.opaques[:8])) == 8
    assert line.tally.decoded == 1
    assert line.say(*(sent(opaque, 10_000) for opaque in line.opaques[8:])) == 2
    assert line.tally.decoded == 2
    assert outcome(line) == (10, 0, 0)


@pytest.mark.parametrize("cut", range(1, 60))
def test_answers_may_come_in_any_pieces(line: Line, cut: int) -> None:
    """Every answer is counted once, however the reads divide the stream."""
    stream = b"".join(sent(opaque, 995 + index) for index, opaque in enumerate(line.opaques))
    step = cut * 7
    answered = sum(line.say(stream[at : at + step]) for at in range(0, len(stream), step))
    assert answered == 10
    assert outcome(line) == (10, 0, 0)


@pytest.mark.parametrize("known", [False, True], ids=["first", "known form"])
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (sent(FIRST + 1, code=2, remark="busy"), "code 2: busy"),
        (sent(FIRST + 1, code=2), "code 2: None"),
        (frame(json.dumps({"opaque": FIRST + 1, "code": 10}).encode()), "code 10"),
    ],
    ids=["another length", "the form of a success", "another order"],
)
def test_a_refusal_is_an_error(line: Line, known: bool, wrong: bytes, error: str) -> None:
    """A refusal is an error, even if it differs from a success by one digit."""
    if known:
        line.say(sent(FIRST))
    assert line.say(wrong) == 1
    assert outcome(line) == (int(known), 1, 9 - known)
    assert error in line.tally.first_errors[0]


@pytest.mark.parametrize("known", [False, True], ids=["first", "known form"])
@pytest.mark.parametrize("opaque", [FIRST + 10, 1_111_111_111, FIRST - 1])
def test_an_answer_to_nothing_that_is_outstanding_is_an_error(line: Line, known: bool, opaque: int) -> None:
    """Such an answer is counted as an error and completes no other request."""
    if known:
        line.say(sent(FIRST))
    assert line.say(sent(opaque)) == 0
    assert outcome(line) == (int(known), 1, 10 - known)
    assert str(opaque) in line.tally.first_errors[0]


def test_a_second_answer_to_the_same_request_is_an_error(line: Line) -> None:
    """A duplicate answer is an error in the same read and later."""
    assert line.say(sent(FIRST), sent(FIRST + 1), sent(FIRST + 1)) == 2
    assert line.say(sent(FIRST)) == 0
    assert outcome(line) == (2, 2, 8)


def test_successes_in_other_spellings_are_decoded(line: Line) -> None:
    """Other key orders, spaces, a missing code (which is 0), a repeated opaque label and a binary header are
    decoded."""
    binary = struct.pack(">hbhi", 0, 0, 453, FIRST + 4) + bytes(12)
    spellings = [
        frame(json.dumps({"opaque": FIRST, "code": 0}).encode()),
        frame(json.dumps({"code": 0, "opaque": FIRST + 1}, indent=1).encode()),
        frame(json.dumps({"opaque": FIRST + 2}).encode()),
        answer(FIRST + 3, extFields={"opaque": "1"}),
        struct.pack(">iI", 4 + len(binary), 1 << 24 | len(binary)) + binary,
    ]
    assert line.say(*spellings) == 5
    assert outcome(line) == (5, 0, 5)
    assert line.tally.decoded == 5


def test_a_form_is_learned_only_where_bytes_are_enough() -> None:
    """If the code is not the first key, or the opaque is ambiguous, answers are always decoded."""
    assert learn(sent(FIRST), b"%d" % FIRST) is not None
    assert learn(sent(FIRST), b"%d" % (FIRST + 1)) is None
    assert learn(answer(FIRST, extFields={"opaque": "1"}), b"%d" % FIRST) is None
    assert (
        learn(frame(json.dumps({"opaque": FIRST, "code": 0}, separators=(",", ":")).encode()), b"%d" % FIRST)
        is None
    )


@pytest.mark.parametrize(
    "rubbish",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        struct.pack(">iI", 4, 100),
        struct.pack(">iI", 3, 0),
        frame(b"not json"),
        frame(b"{}"),
    ],
    ids=["another protocol", "header longer than frame", "too short", "no json", "no opaque"],
)
def test_what_is_not_the_protocol_ends_the_run(line: Line, rubbish: bytes) -> None:
    """Invalid bytes raise an error instead of waiting for more bytes."""
    with pytest.raises(LoadError):
        line.say(rubbish)


def test_a_server_that_goes_away_ends_the_run(line: Line) -> None:
    """The error contains the number of outstanding requests."""
    line.say(sent(FIRST))
    line.server.shutdown(socket.SHUT_WR)
    with pytest.raises(LoadError, match="9 requests unanswered"):
        line.sender.harvest()


def test_the_digits_of_an_opaque_under_another_name_are_no_answer(line: Line) -> None:
    """A frame with another label is decoded, and is invalid without an opaque."""
    line.say(sent(FIRST))
    with pytest.raises(LoadError, match="with an opaque"):
        line.say(sent(FIRST + 1).replace(b'"opaque":', b'"number":'))
    assert outcome(line) == (1, 0, 9)


def test_what_was_not_answered_is_an_error(line: Line) -> None:
    """Each unanswered request is an error."""
    line.say(sent(FIRST))
    line.sender.give_up()
    assert outcome(line) == (1, 9, 0)


def serve(server: socket.socket, seen: list[int]) -> None:
    """Answer every request with success until the peer closes; small reads fill the peer's socket buffer."""
    rest = b""
    with server:
        while data := server.recv(3000):
            rest += data
            while len(rest) >= 4 and len(rest) >= 4 + struct.unpack_from(">i", rest)[0]:
                request = split(rest[: 4 + struct.unpack_from(">i", rest)[0]])[0]
                rest = rest[len(request) :]
                seen.append(opaque_of(request))
                server.sendall(sent(seen[-1]))


@pytest.mark.parametrize(
    ("connections", "in_flight", "size"), [(1, 1, 20), (3, 8, 20), (12, 1, 20), (2, 8, 200_000)]
)
def test_a_window_sends_what_the_budget_allows_and_gets_every_answer(
    connections: int, in_flight: int, size: int
) -> None:
    """No request is sent twice or lost, even if the socket accepts only part of a frame."""
    pairs = [socket.socketpair() for _ in range(connections)]
    seen: list[list[int]] = [[] for _ in pairs]
    threads = [
        threading.Thread(target=serve, args=(pair[1], own)) for pair, own in zip(pairs, seen, strict=True)
    ]
    for thread in threads:
        thread.start()
    tally, budget = Tally(), Budget(100, float("inf"))
    senders = [Sender(pair[0], Ring(SendShape("T", size, 1, 4), in_flight), tally) for pair in pairs]
    if connections == in_flight == 1:
        run_one_by_one(senders[0], budget)
    else:
        run_window(senders, budget, in_flight)
    for pair in pairs:
        pair[0].close()
    for thread in threads:
        thread.join()
    assert sorted(opaque for own in seen for opaque in own) == list(
        range(FIRST_OPAQUE + 1, FIRST_OPAQUE + 101)
    )
    assert (len(tally.latencies), tally.errors) == (100, 0)
    # All answers have the same length: on each connection the first was decoded and the others compared.
    assert tally.decoded == connections


@pytest.mark.parametrize("in_flight", [1, 4])
def test_silence_ends_a_run(in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outstanding requests are counted as unanswered."""
    monkeypatch.setattr(sending, "SILENCE_S", 0.01)
    ours, theirs = socket.socketpair()
    tally = Tally()
    with ours, theirs:
        sender = Sender(ours, Ring(SHAPE, in_flight), tally)
        if in_flight == 1:
            run_one_by_one(sender, Budget(10, float("inf")))
        else:
            run_window([sender], Budget(10, float("inf")), in_flight)
    assert (len(tally.latencies), tally.errors) == (0, in_flight)
