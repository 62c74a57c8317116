"""A load generator for any broker that speaks the RocketMQ remoting protocol; standard library only, shares no code with rmqkit.

    python benchmarks/load.py send --broker 127.0.0.1:10911 --topic bench --size 1024 --connections 8 --in-flight 32 --seconds 10
    python benchmarks/load.py send --broker 127.0.0.1:10911 --topic bench --connections 1 --in-flight 1 --messages 20000
    python benchmarks/load.py send --broker 127.0.0.1:10911 --topic bench --batch 32 --connections 4 --in-flight 4 --seconds 10
    python benchmarks/load.py pull --namesrv 127.0.0.1:9876 --topic bench --passes 3

One process, one thread. Frames are encoded once and only the opaque (and the UNIQ_KEY that ends in it) is patched, so a message costs the
generator a few microseconds; `generator_busy` in the report says how much of its core it used, and a figure near 1 means that the
generator, not the server, was the limit. Every response is checked: its code must be 0 and its opaque must be one that is outstanding.
The report is one JSON object on standard output; the exit status is 1 if anything failed. Sizes are bytes, times seconds unless a name
says `ms`; MB is 10**6 bytes, of message bodies when sending and of stored records when pulling.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import selectors
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

SUCCESS, TOPIC_NOT_EXIST, PULL_NOT_FOUND = 0, 17, 19
SEND_V2, SEND_BATCH, PULL, GET_ROUTE = 310, 320, 11, 105
TEMPLATE_TOPIC = "TBW102"
PROTOCOL_VERSION = 453
"""MQVersion ordinal sent in requests: a 5.x client."""
FIRST_OPAQUE = 1_000_000_000
"""Opaques have ten digits and stay below 2**31, so that every frame of a run has the same length and can be patched in place."""
RECEIVE_BYTES = 1 << 17
SILENCE_S = 15.0
"""A run in which nothing arrives for so long is over; what is still outstanding counts as unanswered."""
KEPT_ERRORS = 5

MAGICS = (0xDAA320A7, 0xDAA320AB)
FRAME_HEAD = struct.Struct(">iI")
RECORD_HEAD = struct.Struct(">II12xq")
"""totalSize, magic, (bodyCRC, queueId, flag), queueOffset: the first 28 bytes of a stored message."""


class LoadError(Exception):
    """The run cannot go on: the peer closed, said something that is not the protocol, or does not know the topic."""


# --- frames -----------------------------------------------------------------------------------------------------------------------


def encode(code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """One request frame with a JSON header: length, header length, header, body."""
    fields = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque, "version": PROTOCOL_VERSION}
    header = json.dumps({**fields, "serializeTypeCurrentRPC": "JSON"}, separators=(",", ":")).encode()
    return FRAME_HEAD.pack(4 + len(header) + len(body), len(header)) + header + body


def decode_header(word: int, raw: bytes) -> dict[str, Any]:
    """The header of a response as a dict with `code` and `opaque`; of a binary header only these two are read."""
    if word >> 24 == 1:
        code, opaque = struct.unpack_from(">h3xi", raw)
        return {"code": code, "opaque": opaque}
    header = json.loads(raw)
    if not isinstance(header, dict):
        raise LoadError(f"response header is not an object: {raw[:80]!r}")
    return {"code": 0, **header}


def batch_body(bodies: Sequence[bytes], properties: Sequence[bytes]) -> bytes:
    """The body of SEND_BATCH_MESSAGE: total, magic 0, crc 0, flag, body length, body, properties length, properties, for each message."""
    parts = []
    for body, props in zip(bodies, properties, strict=True):
        total = 4 * 5 + len(body) + 2 + len(props)
        parts.append(struct.pack(">iiiii", total, 0, 0, 0, len(body)) + body + struct.pack(">h", len(props)) + props)
    return b"".join(parts)


@dataclass(frozen=True)
class SendShape:
    """What is sent: `batch` messages of `size` bytes in each request, to queues 0..queues-1 of `topic` in turn."""

    topic: str
    size: int
    batch: int
    queues: int
    group: str = "load-producer"

    def frame(self, queue: int) -> bytes:
        """A request for one queue, carrying FIRST_OPAQUE wherever an opaque is to be patched in."""
        keys = [f"7F0000011092{index:010X}{FIRST_OPAQUE}" for index in range(max(self.batch, 1))]
        properties = [f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02".encode() for key in keys]
        body = random.Random(self.size).randbytes(self.size)
        now_ms = str(int(time.time() * 1000))
        ext = {"a": self.group, "b": self.topic, "c": TEMPLATE_TOPIC, "d": str(self.queues), "e": str(queue), "f": "0", "g": now_ms}
        ext |= {"h": "0", "i": properties[0].decode(), "j": "0", "k": "false", "m": "false"}
        if self.batch == 1:
            return encode(SEND_V2, FIRST_OPAQUE, ext, body)
        ext["m"] = "true"
        return encode(SEND_BATCH, FIRST_OPAQUE, ext, batch_body([body] * self.batch, properties))


class Ring:
    """Frames side by side in one buffer, one per queue in turn; `take` patches the next few and hands out their bytes."""

    def __init__(self, shape: SendShape, at_least: int) -> None:
        rounds = -(-at_least // shape.queues)
        frames = [shape.frame(queue) for queue in range(shape.queues)] * rounds
        self.length = len(frames[0])
        if any(len(frame) != self.length for frame in frames):
            raise LoadError("frames of one run must have one length: use at most ten queues")
        self.count = len(frames)
        self.buffer = bytearray(b"".join(frames))
        self.view = memoryview(self.buffer)
        mark = str(FIRST_OPAQUE).encode()
        self.spots = [found.start() for found in re.finditer(mark, frames[0])]
        self.next = 0

    def take(self, opaques: Sequence[bytes]) -> list[memoryview]:
        """The bytes of the next `len(opaques)` frames in one or two pieces; they are valid until the next call."""
        buffer, length, spots, slot = self.buffer, self.length, self.spots, self.next
        first = slot
        pieces = []
        for opaque in opaques:
            base = slot * length
            for spot in spots:
                start = base + spot
                buffer[start : start + 10] = opaque
            slot += 1
            if slot == self.count:
                pieces.append(self.view[first * length : slot * length])
                first = slot = 0
        if slot > first:
            pieces.append(self.view[first * length : slot * length])
        self.next = slot
        return pieces


# --- what is counted ------------------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts of one run. `latencies` holds one figure in seconds for every request that was answered with success."""

    latencies: array[float] = field(default_factory=lambda: array("d"))
    requests: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        """Count one error and keep the text of the first few."""
        self.errors += 1
        if len(self.first_errors) < KEPT_ERRORS:
            self.first_errors.append(text)


def percentiles_ms(latencies: Sequence[float]) -> dict[str, float]:
    """Exact percentiles of all samples (nearest rank), in milliseconds."""
    ordered = sorted(latencies)
    if not ordered:
        return {}
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in names.items()}
    return {name: round(value * 1000, 4) for name, value in {**found, "max": ordered[-1]}.items()}


def report(mode: str, tally: Tally, messages: int, size: float, seconds: float, cpu_s: float) -> dict[str, Any]:
    """The JSON object of one run; `messages` counts only what was confirmed, `size` is the mean body size in bytes."""
    rate = messages / seconds if seconds > 0 else 0.0
    return {
        "mode": mode,
        "messages": messages,
        "requests": tally.requests,
        "seconds": round(seconds, 6),
        "messages_per_s": round(rate, 1),
        "mb_per_s": round(rate * size / 1e6, 3),
        "latency_ms": percentiles_ms(tally.latencies),
        "generator_busy": round(cpu_s / seconds, 3) if seconds > 0 else 0.0,
        "errors": tally.errors,
        "first_errors": tally.first_errors,
    }


@dataclass
class Budget:
    """How many requests may still be issued: a number, and a point on time.perf_counter() after which there are none."""

    requests: int
    deadline: float
    next_opaque: int = FIRST_OPAQUE + 1

    def take(self, wanted: int, now: float) -> list[bytes]:
        """Up to `wanted` fresh opaques, as the ten digits that go on the wire."""
        if now >= self.deadline:
            return []
        count = min(wanted, self.requests)
        self.requests -= count
        start = self.next_opaque
        self.next_opaque = start + count
        return [b"%d" % opaque for opaque in range(start, start + count)]


# --- sending --------------------------------------------------------------------------------------------------------------------------


def connect(address: str, timeout_s: float = 10.0) -> socket.socket:
    """A blocking TCP connection to `host:port` without Nagle's delay."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Sender:
    """One connection with a window of requests in flight; `fill` writes, `harvest` reads and checks."""

    def __init__(self, sock: socket.socket, ring: Ring, tally: Tally) -> None:
        self.sock = sock
        self.ring = ring
        self.tally = tally
        self.outstanding: dict[bytes, float] = {}
        self.rest = b""
        self.unsent = b""

    def fill(self, opaques: Sequence[bytes], now: float) -> None:
        """Write one request for each opaque; bytes the socket does not take at once wait in `unsent`."""
        self.outstanding.update(dict.fromkeys(opaques, now))
        for piece in self.ring.take(opaques):
            if self.unsent:
                self.unsent += piece
                continue
            try:
                done = self.sock.send(piece)
            except BlockingIOError:
                done = 0
            if done < len(piece):
                self.unsent = bytes(piece[done:])

    def flush(self) -> None:
        """Go on with `unsent`; called when the socket is writable."""
        try:
            done = self.sock.send(self.unsent)
        except BlockingIOError:
            return
        self.unsent = self.unsent[done:]

    def harvest(self) -> int:
        """Read what is there, check every whole response in it, and return how many requests were answered."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise LoadError(f"the server closed the connection with {len(self.outstanding)} requests unanswered")
        now = time.perf_counter()
        if self.rest:
            data = self.rest + data
        head, outstanding, record = FRAME_HEAD.unpack_from, self.outstanding, self.tally.latencies.append
        position, end, answered = 0, len(data), 0
        while end - position >= 8:
            total, word = head(data, position)
            after = position + 4 + total
            if after > end:
                break
            start = position + 8
            stop = start + (word & 0xFFFFFF)
            mark = data.find(b'"opaque":1', start, stop)
            sent = outstanding.pop(data[mark + 9 : mark + 19], None) if mark > 0 else None
            if sent is not None and (data.startswith(b'{"code":0,', start) or data.find(b'"code":0,', start, stop) > 0):
                record(now - sent)
                answered += 1
            else:
                answered += self._slow(word, data[start:stop], sent, now)
            position = after
        self.rest = data[position:]
        return answered

    def _slow(self, word: int, raw: bytes, sent: float | None, now: float) -> int:
        """A response that the quick look did not settle: a failure, another spelling of the header, or a stranger's opaque."""
        header = decode_header(word, raw)
        if sent is None:
            sent = self.outstanding.pop(b"%d" % int(header["opaque"]), None)
        if sent is None:
            self.tally.fail(f"response to nothing that is outstanding: {header}")
            return 0
        if header["code"] == SUCCESS:
            self.tally.latencies.append(now - sent)
        else:
            self.tally.fail(f"code {header['code']}: {header.get('remark')}")
        return 1


def run_window(senders: Sequence[Sender], budget: Budget, in_flight: int) -> None:
    """Keep `in_flight` requests on every connection until the budget is used up and everything is answered."""
    selector = selectors.DefaultSelector()
    for sender in senders:
        sender.sock.setblocking(False)
        sender.fill(budget.take(in_flight, time.perf_counter()), time.perf_counter())
        selector.register(sender.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.unsent else 0), sender)
    while any(sender.outstanding for sender in senders):
        ready = selector.select(SILENCE_S)
        if not ready:
            break
        for key, events in ready:
            sender = key.data
            if events & selectors.EVENT_WRITE:
                sender.flush()
            answered = sender.harvest() if events & selectors.EVENT_READ else 0
            if answered:
                now = time.perf_counter()
                sender.fill(budget.take(answered, now), now)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.unsent else 0)
            if wanted != key.events:
                selector.modify(sender.sock, wanted, sender)
    selector.close()
    for sender in senders:
        for opaque in sender.outstanding:
            sender.tally.fail(f"no answer to {opaque.decode()}")


def run_one_by_one(sender: Sender, budget: Budget) -> None:
    """One request at a time on a blocking socket, without a selector: the shortest way to a latency."""
    sender.sock.settimeout(SILENCE_S)
    now = time.perf_counter()
    while opaques := budget.take(1, now):
        sender.outstanding[opaques[0]] = now = time.perf_counter()
        for piece in sender.ring.take(opaques):
            sender.sock.sendall(piece)
        while sender.outstanding:
            sender.harvest()
        now = time.perf_counter()


def ask(sock: socket.socket, frame: bytes) -> tuple[dict[str, Any], bytes]:
    """One request and its response on a blocking socket: header and body."""
    sock.sendall(frame)
    prefix = _exactly(sock, 8)
    total, word = FRAME_HEAD.unpack(prefix)
    rest = _exactly(sock, total - 4)
    size = word & 0xFFFFFF
    return decode_header(word, rest[:size]), rest[size:]


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(size)
        if not part:
            raise LoadError("the server closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(address: str, shape: SendShape, connections: int, in_flight: int, messages: int, seconds: float) -> dict[str, Any]:
    """Create the topic with one uncounted request, then send until `messages` (0: no limit) or `seconds` (0: no limit) are used up."""
    tally = Tally()
    socks = [connect(address) for _ in range(connections)]
    try:
        header, _ = ask(socks[0], shape.frame(0))
        if header["code"] != SUCCESS:
            raise LoadError(f"the first send was refused with code {header['code']}: {header.get('remark')}")
        senders = [Sender(sock, Ring(shape, in_flight), tally) for sock in socks]
        cpu, start = time.process_time(), time.perf_counter()
        requests = -(-messages // shape.batch) if messages else sys.maxsize
        budget = Budget(requests, start + seconds if seconds else math.inf)
        if connections == 1 and in_flight == 1:
            run_one_by_one(senders[0], budget)
        else:
            run_window(senders, budget, in_flight)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        for sock in socks:
            sock.close()
    tally.requests = budget.next_opaque - FIRST_OPAQUE - 1
    if tally.requests != len(tally.latencies) + tally.errors:
        tally.fail(f"{tally.requests} requests, but {len(tally.latencies)} successes and {tally.errors} errors")
    return report("send", tally, len(tally.latencies) * shape.batch, shape.size, elapsed, cpu)


# --- pulling --------------------------------------------------------------------------------------------------------------------------


@dataclass
class Puller:
    """One connection that reads one queue from its first message to the last that was there at the first response."""

    sock: socket.socket
    topic: str
    queue: int
    batch: int
    tally: Tally
    offset: int = 0
    until: int = -1
    messages: int = 0
    record_bytes: int = 0
    asked_at: float = 0.0
    buffer: bytearray = field(default_factory=lambda: bytearray(1 << 19))
    filled: int = 0
    done: bool = False

    def ask_more(self) -> None:
        """Send the next PULL_MESSAGE: subscription `*` inside the request (bit 2), no long poll, nothing committed."""
        ext = {"consumerGroup": "load-consumer", "topic": self.topic, "queueId": str(self.queue), "queueOffset": str(self.offset)}
        ext |= {"maxMsgNums": str(self.batch), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        ext |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        self.tally.requests += 1
        self.asked_at = time.perf_counter()
        self.sock.sendall(encode(PULL, FIRST_OPAQUE + self.tally.requests, ext))

    def readable(self) -> None:
        """Read what is there; when the response is whole, check it and ask for more or be done."""
        received = self.sock.recv_into(memoryview(self.buffer)[self.filled :])
        if not received:
            raise LoadError(f"the server closed the connection at offset {self.offset} of queue {self.queue}")
        self.filled += received
        if self.filled < 8:
            return
        total, word = FRAME_HEAD.unpack_from(self.buffer)
        end = 4 + total
        if self.filled < end:
            if end > len(self.buffer):
                self.buffer.extend(bytes(end - len(self.buffer)))
            return
        body = 8 + (word & 0xFFFFFF)
        self.filled = 0
        self.tally.latencies.append(time.perf_counter() - self.asked_at)
        self.take(decode_header(word, bytes(self.buffer[8:body])), body, end)
        if not self.done:
            self.ask_more()

    def take(self, header: dict[str, Any], body: int, end: int) -> None:
        """Check one response whose records lie in buffer[body:end]."""
        code, ext = header["code"], header.get("extFields") or {}
        if self.until < 0 and "maxOffset" in ext:
            self.until = int(ext["maxOffset"])
        if code == PULL_NOT_FOUND:
            self.done = True
        elif code != SUCCESS:
            self.tally.fail(f"pull of queue {self.queue} at {self.offset}: code {code}: {header.get('remark')}")
            self.done = True
        else:
            before = self.offset
            self.walk(body, end)
            if int(ext["nextBeginOffset"]) != self.offset or self.offset == before:
                self.tally.fail(f"nextBeginOffset {ext['nextBeginOffset']} after records {before}..{self.offset - 1}")
                self.done = True
            self.done = self.done or self.offset >= self.until

    def walk(self, position: int, end: int) -> None:
        """Count the records and check sizes, magic and that queue offsets follow one another."""
        buffer, head, offset = self.buffer, RECORD_HEAD.unpack_from, self.offset
        start = position
        while position < end:
            total, magic, found = head(buffer, position)
            if magic not in MAGICS or found != offset or total < RECORD_HEAD.size or position + total > end:
                self.tally.fail(f"queue {self.queue}: record of {total} bytes, magic {magic:#x}, offset {found}; expected offset {offset}")
                self.done = True
                break
            offset += 1
            position += total
        self.messages += offset - self.offset
        self.record_bytes += position - start
        self.offset = offset


def run_pull(pullers: Sequence[Puller]) -> None:
    """Read all queues side by side, one request in flight on each connection, until all are done."""
    selector = selectors.DefaultSelector()
    for puller in pullers:
        selector.register(puller.sock, selectors.EVENT_READ, puller)
        puller.ask_more()
    while any(not puller.done for puller in pullers):
        ready = selector.select(SILENCE_S)
        if not ready:
            pullers[0].tally.fail("no answer to a pull")
            break
        for key, _ in ready:
            key.data.readable()
    selector.close()


def pull(address: str, topic: str, queues: int, batch: int, passes: int) -> dict[str, Any]:
    """Read queues 0..queues-1 from offset 0 to the end, `passes` times; one connection per queue."""
    tally, messages, record_bytes = Tally(), 0, 0
    socks = [connect(address) for _ in range(queues)]
    cpu, start = time.process_time(), time.perf_counter()
    try:
        for _ in range(passes):
            pullers = [Puller(sock, topic, queue, batch, tally) for queue, sock in enumerate(socks)]
            run_pull(pullers)
            messages += sum(puller.messages for puller in pullers)
            record_bytes += sum(puller.record_bytes for puller in pullers)
            if tally.errors:
                break
    finally:
        for sock in socks:
            sock.close()
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    return report("pull", tally, messages, record_bytes / messages if messages else 0, elapsed, cpu)


# --- routes ---------------------------------------------------------------------------------------------------------------------------


def route(namesrv: str, topic: str, timeout_s: float = 5.0) -> tuple[str, int] | None:
    """Address of the first master broker of the topic and its number of read queues, or None if the name server does not know it."""
    with connect(namesrv, timeout_s) as sock:
        header, body = ask(sock, encode(GET_ROUTE, FIRST_OPAQUE, {"topic": topic, "acceptStandardJsonOnly": "true"}))
    if header["code"] == TOPIC_NOT_EXIST:
        return None
    if header["code"] != SUCCESS:
        raise LoadError(f"route of {topic}: code {header['code']}: {header.get('remark')}")
    found = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
    queues = {item["brokerName"]: int(item["readQueueNums"]) for item in found["queueDatas"]}
    for broker in found["brokerDatas"]:
        if "0" in broker["brokerAddrs"] and broker["brokerName"] in queues:
            return broker["brokerAddrs"]["0"], queues[broker["brokerName"]]
    return None


def find_broker(args: argparse.Namespace) -> tuple[str, int]:
    """Broker address and queue count from the command line, or from the route of the topic (of the template topic if it is new)."""
    if args.broker:
        return args.broker, args.queues or 4
    known = route(args.namesrv, args.topic)
    if known:
        return known[0], args.queues or known[1]
    template = route(args.namesrv, TEMPLATE_TOPIC)
    if template is None:
        raise LoadError(f"{args.namesrv} knows neither {args.topic} nor {TEMPLATE_TOPIC}")
    return template[0], args.queues or 4


# --- command line -----------------------------------------------------------------------------------------------------------------------


def at_least(minimum: int) -> Callable[[str], int]:
    """An argparse type: an integer that is not below `minimum`."""

    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be {minimum} or more")
        return value

    return parse


def parser() -> argparse.ArgumentParser:
    """The command line; see the top of this file for examples."""
    top = argparse.ArgumentParser(description="Load generator for RocketMQ brokers; prints one JSON object.")
    modes = top.add_subparsers(dest="mode", required=True)
    for name in ("send", "pull"):
        mode = modes.add_parser(name)
        where = mode.add_mutually_exclusive_group(required=True)
        where.add_argument("--broker", metavar="HOST:PORT", help="broker to talk to")
        where.add_argument("--namesrv", metavar="HOST:PORT", help="name server to ask for the broker of the topic")
        mode.add_argument("--topic", default="load", help="created by the first send if the broker allows it (default: load)")
        mode.add_argument("--queues", type=at_least(0), default=0, help="use queues 0..N-1 (default: as the route says, else 4)")
        if name == "pull":
            mode.add_argument("--max-messages", type=at_least(1), default=32, help="maxMsgNums of each pull (default 32)")
            mode.add_argument("--passes", type=at_least(1), default=1, help="read everything this many times (default 1)")
            continue
        mode.add_argument("--size", type=at_least(1), default=1024, help="body size in bytes (default 1024)")
        mode.add_argument("--connections", type=at_least(1), default=8)
        mode.add_argument("--in-flight", type=at_least(1), default=32, help="requests in flight on each connection (default 32)")
        mode.add_argument("--batch", type=at_least(1), default=1, help="messages per request; above 1 uses SEND_BATCH_MESSAGE (default 1)")
        mode.add_argument("--messages", type=at_least(0), default=0, help="stop after this many messages")
        mode.add_argument("--seconds", type=float, default=0.0, help="stop sending after this time")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Do what the command line asks and return the report."""
    address, queues = find_broker(args)
    if args.mode == "pull":
        return pull(address, args.topic, queues, args.max_messages, args.passes)
    if not args.messages and not args.seconds:
        args.seconds = 10.0
    shape = SendShape(args.topic, args.size, args.batch, queues)
    return send(address, shape, args.connections, args.in_flight, args.messages, args.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 if every request succeeded."""
    args = parser().parse_args(argv)
    try:
        result = run(args)
    except (LoadError, OSError, ValueError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 1 if result["errors"] or not result["messages"] else 0


if __name__ == "__main__":
    sys.exit(main())
