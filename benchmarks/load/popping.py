"""Pops a topic empty and acknowledges it, by several connections: each has one request in flight, a pop, then
the acknowledgement of what it got, and the next pop when that is answered.

A message counts when its acknowledgement is answered with success, with the time since its pop was sent.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.load.asking import ask, connect
from benchmarks.load.frames import FIRST_OPAQUE, SUCCESS, LoadError, encode
from benchmarks.load.tally import Tally, report

POP, ACK, BATCH_ACK = 200_050, 200_051, 200_151
NOTHING = (19, 210)
"""The codes of a pop that finds no message."""
GROUP = "load-poppers"
INVISIBLE_MS = 60_000


class Popped(NamedTuple):
    """What a pop got from one queue; `retry` says from which of the topic and its retry topics."""

    retry: str
    queue: int
    start: int
    offsets: list[int]


def found_in(fields: dict[str, str]) -> list[Popped]:
    """What the header of an answer says."""
    starts = {tuple(rest): start for *rest, start in _entries(fields["startOffsetInfo"])}
    return [
        Popped(retry, int(queue), int(starts[retry, queue]), [int(each) for each in offsets.split(",")])
        for retry, queue, offsets in _entries(fields["msgOffsetInfo"])
    ]


def _entries(text: str) -> Iterator[list[str]]:
    return (entry.split(" ") for entry in text.split(";"))


def bits_of(popped: Popped) -> str:
    """The offsets as Java writes a bit set, from the start of the run on."""
    number = sum(1 << offset - popped.start for offset in popped.offsets)
    return base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


class Popper:
    """One connection."""

    def __init__(self, address: str, broker_name: str, topic: str, most: int, tally: Tally) -> None:
        self._sock = connect(address)
        self._broker_name, self._topic, self._most = broker_name, topic, most
        self._tally = tally
        self._opaque = FIRST_OPAQUE
        self.messages = 0
        self.latencies = array("d")

    def close(self) -> None:
        self._sock.close()

    def run(self, deadline: float) -> None:
        """Until the topic is empty, or `deadline` (perf_counter)."""
        while time.perf_counter() < deadline:
            began = time.perf_counter()
            header = self._ask(POP, self._pop_fields())
            if header["code"] in NOTHING:
                return
            if header["code"] != SUCCESS:
                raise LoadError(f"pop of {self._topic}: code {header['code']}: {header.get('remark')}")
            fields = header["extFields"]
            found = found_in(fields)
            answered = self._acknowledge(found, fields)
            if answered["code"] != SUCCESS:
                raise LoadError(f"acknowledgement: code {answered['code']}: {answered.get('remark')}")
            count = sum(len(each.offsets) for each in found)
            took = time.perf_counter() - began
            self.messages += count
            self.latencies.extend([took] * count)

    def _pop_fields(self) -> dict[str, str]:
        now_ms = str(time.time_ns() // 1_000_000)
        return {
            "consumerGroup": GROUP,
            "topic": self._topic,
            "queueId": "-1",
            "maxMsgNums": str(self._most),
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": "0",
            "bornTime": now_ms,
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }

    def _acknowledge(self, found: Sequence[Popped], fields: dict[str, str]) -> dict[str, Any]:
        pop_time, invisible, revive = (fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
        if self._most == 1:
            (one,) = found
            (offset,) = one.offsets
            handle = [one.start, pop_time, invisible, revive, one.retry, self._broker_name, one.queue, offset]
            place = {"queueId": str(one.queue), "offset": str(offset)}
            place |= {"consumerGroup": GROUP, "topic": self._topic}
            return self._ask(ACK, place | {"extraInfo": " ".join(map(str, handle))})
        acks = [
            {
                "c": GROUP,
                "t": self._topic,
                "r": each.retry,
                "so": each.start,
                "q": each.queue,
                "rq": int(revive),
                "pt": int(pop_time),
                "it": int(invisible),
                "b": bits_of(each),
            }
            for each in found
        ]
        body = json.dumps({"brokerName": self._broker_name, "acks": acks}).encode()
        return self._ask(BATCH_ACK, {}, body)

    def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> dict[str, Any]:
        self._opaque += 1
        self._tally.requests += 1
        header, _ = ask(self._sock, encode(code, self._opaque, fields, body))
        return header


def pop(
    address: str, broker_name: str, topic: str, connections: int, most: int, seconds: float
) -> dict[str, Any]:
    """Pop with `connections` threads until the topic is empty, or for `seconds`; up to `most` messages at a
    time."""
    tally = Tally()
    poppers = [Popper(address, broker_name, topic, most, tally) for _ in range(connections)]
    cpu, start = time.process_time(), time.perf_counter()

    def run(popper: Popper) -> None:
        try:
            popper.run(start + seconds)
        except (LoadError, OSError) as error:
            tally.fail(str(error))

    threads = [threading.Thread(target=run, args=(each,)) for each in poppers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    for each in poppers:
        each.close()
        tally.latencies.extend(each.latencies)
    return report("pop", tally, sum(each.messages for each in poppers), 0, elapsed, cpu)


__all__ = ["Popped", "Popper", "bits_of", "found_in", "pop"]
