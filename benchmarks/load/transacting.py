"""Transactions with a window of them in flight on each of several connections: each is a half message and,
when that is answered, its commit, which is answered as well.

A transaction counts when its commit is answered with success, with the time since its half message was sent.
All answers are decoded in full, because the commit needs the offsets in them.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load.asking import connect
from benchmarks.load.frames import (
    FIRST_OPAQUE,
    FRAME_HEAD,
    HEADER_LENGTH,
    SUCCESS,
    LoadError,
    Ring,
    SendShape,
    encode,
    encode_header,
    frame,
)
from benchmarks.load.sending import Sender, create_topic, run_window, settle
from benchmarks.load.tally import Budget, Tally, report

END_TRANSACTION, COMMIT = 37, "8"
#: Added to the opaque of a half message for its commit.
ENDS = 500_000_000
_PREPARED = "TRAN_MSG\x01true\x02PGROUP\x01{group}\x02"


class HalfShape(SendShape):
    """Half messages: what SendShape sends, prepared for a transaction."""

    def frame(self, queue: int) -> bytes:
        plain = super().frame(queue)
        total, word = FRAME_HEAD.unpack_from(plain)
        head_end = FRAME_HEAD.size + (word & HEADER_LENGTH)
        fields = json.loads(plain[FRAME_HEAD.size : head_end])
        fields["extFields"]["i"] += _PREPARED.format(group=self.group)
        return encode(fields["code"], FIRST_OPAQUE, fields["extFields"], plain[head_end : 4 + total])


class Transactor(Sender):
    """One connection. `outstanding` has the opaques of half messages until their commits are answered."""

    def __init__(self, sock: Any, ring: Ring, tally: Tally, group: str) -> None:
        super().__init__(sock, ring, tally)
        fields = {
            "producerGroup": group,
            "tranStateTableOffset": "TABLE",
            "commitLogOffset": "LOG",
            "commitOrRollback": COMMIT,
            "msgId": "KEY",
            "transactionId": "KEY",
        }
        self._commit = encode_header(END_TRANSACTION, FIRST_OPAQUE, fields).decode()

    def _decode(self, position: int, end: int, now: float) -> int:
        """Take one answer: commit what is stored, count what is committed."""
        total: int
        total, word = FRAME_HEAD.unpack_from(self._buffer, position)
        size = word & HEADER_LENGTH
        if position + 4 + total > end:
            return 0
        start = position + FRAME_HEAD.size
        header = json.loads(bytes(self._buffer[start : start + size]))
        self.tally.decoded += 1
        number = header["opaque"]
        is_end = number - ENDS >= FIRST_OPAQUE
        opaque = b"%d" % (number - ENDS if is_end else number)
        sent = self.outstanding.get(opaque)
        if sent is None:
            raise LoadError(f"answer to nothing that is outstanding: {header}")
        if header["code"] != SUCCESS:
            self.tally.fail(f"code {header['code']}: {header.get('remark')}")
            del self.outstanding[opaque]
        elif is_end:
            self.tally.latencies.append(now - sent)
            del self.outstanding[opaque]
        else:
            self._write_commit(number, header["extFields"])
        return 4 + total

    def _write_commit(self, opaque: int, fields: dict[str, str]) -> None:
        values = {
            "TABLE": fields["queueOffset"],
            "LOG": str(int(fields["msgId"][-16:], 16)),
            "KEY": fields["transactionId"],
            str(FIRST_OPAQUE): str(opaque + ENDS),
        }
        header = re.sub(
            f'"(TABLE|LOG|KEY)"|{FIRST_OPAQUE}', lambda found: _filled(found, values), self._commit
        )
        self.write(frame(header.encode()))


def _filled(found: re.Match[str], values: dict[str, str]) -> str:
    return f'"{values[found[1]]}"' if found[1] else values[found[0]]


def transact(
    brokers: Sequence[str], shape: HalfShape, connections: int, in_flight: int, messages: int, seconds: float
) -> dict[str, Any]:
    """Create the topic with one uncounted send to each broker, then run transactions until `messages` (0: no
    limit) or `seconds` (0: no limit) are used up. The connections go to the brokers in turn."""
    tally = Tally()
    socks = [connect(brokers[number % len(brokers)]) for number in range(connections)]
    plain = SendShape(shape.topic, shape.size, 1, shape.queues)
    try:
        for sock in socks[: len(brokers)]:
            create_topic(sock, plain)
        senders = [Transactor(sock, Ring(shape, in_flight), tally, shape.group) for sock in socks]
        cpu, start = time.process_time(), time.perf_counter()
        budget = Budget(messages or sys.maxsize, start + seconds if seconds else math.inf)
        run_window(senders, budget, in_flight)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        for sock in socks:
            sock.close()
    settle(tally, budget.next_opaque - FIRST_OPAQUE - 1)
    return report("transact", tally, len(tally.latencies), shape.size, elapsed, cpu)


__all__ = ["HalfShape", "Transactor", "transact"]
