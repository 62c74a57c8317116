"""Sending at an even rate."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from benchmarks.load import pacing
from benchmarks.load.frames import FIRST_OPAQUE, LoadError, Ring, SendShape
from benchmarks.load.pacing import Reader, run_paced
from benchmarks.load.sending import Sender
from benchmarks.load.tally import Budget, Tally
from tests.benchmarks.answers import opaque_of, sent, split

RATE = 1e6
"""So high that every message is due at once."""


def sender_and_server(tally: Tally) -> tuple[Sender, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return Sender(ours, Ring(SendShape("T", 20, 1, 4), 1), tally), theirs


def test_messages_are_sent_when_they_are_due_and_not_when_the_last_was_answered() -> None:
    """All messages are sent over the connections in turn without waiting for answers, and the answers are
    counted."""
    tally = Tally()
    lines = [sender_and_server(tally) for _ in range(3)]
    seen: list[list[int]] = []

    def answer() -> None:
        for _, server in lines:
            data = b""
            while data.count(b'"opaque"') < 10:
                data += server.recv(100_000)
            seen.append([opaque_of(request) for request in split(data)])
        for (_, server), opaques in zip(lines, seen, strict=True):
            server.sendall(b"".join(map(sent, opaques)))

    thread = threading.Thread(target=answer)
    thread.start()
    late = run_paced([sender for sender, _ in lines], Budget(30, float("inf")), RATE)
    thread.join()
    assert [own[0] - FIRST_OPAQUE for own in seen] == [1, 2, 3]
    assert [len(own) for own in seen] == [10, 10, 10]
    assert (len(tally.latencies), tally.errors, len(late)) == (30, 0, 30)
    for sender, server in lines:
        sender.sock.close()
        server.close()


def test_messages_keep_to_their_rate() -> None:
    """Eleven messages at 1000 a second take at least ten milliseconds, and none is sent early."""
    tally = Tally()
    sender, server = sender_and_server(tally)

    def answer() -> None:
        answered = 0
        while answered < 11:
            requests = split(server.recv(100_000))
            server.sendall(b"".join(sent(opaque_of(request)) for request in requests))
            answered += len(requests)

    thread = threading.Thread(target=answer)
    thread.start()
    with sender.sock, server:
        start = time.perf_counter()
        late = run_paced([sender], Budget(11, float("inf")), 1000.0)
        assert time.perf_counter() - start >= 0.010
        assert min(late) >= 0
        assert (len(tally.latencies), tally.errors) == (11, 0)
        thread.join()


def test_sending_ends_when_the_reader_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending ends when the descriptor is readable; missing answers count as unanswered after a while."""
    monkeypatch.setattr(pacing, "SILENCE_S", 0.01)
    tally = Tally()
    sender, server = sender_and_server(tally)
    reading, writing = os.pipe()
    os.write(writing, b"{}")
    with sender.sock, server:
        late = run_paced([sender], Budget(10**6, float("inf")), 100.0, reading)
    assert len(late) == tally.errors
    assert 1 <= len(late) < 10
    os.close(reading)
    os.close(writing)


def test_a_reader_that_cannot_start_is_an_error() -> None:
    """The error contains the reader's output, and no process remains."""
    reader = Reader(["127.0.0.1:1"], "T", 4, 1.0)
    with pytest.raises(LoadError, match="refused"):
        reader.__enter__()
    assert reader.process.returncode == 1
