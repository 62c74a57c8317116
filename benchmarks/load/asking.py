"""One request and its response on a blocking socket, and the route of a topic."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

from benchmarks.load.frames import (
    FIRST_OPAQUE,
    FRAME_HEAD,
    GET_ROUTE,
    HEADER_LENGTH,
    SUCCESS,
    TEMPLATE_TOPIC,
    TOPIC_NOT_EXIST,
    LoadError,
    decode_header,
    encode,
)

SILENCE_S = 15.0
"""A run in which nothing arrives for so long is over; what is still outstanding counts as unanswered."""
MAX_ANSWER_BYTES = 1 << 25
"""A longer response is not one that this program asked for."""


def connect(address: str, timeout_s: float = 10.0) -> socket.socket:
    """A blocking TCP connection to `host:port` without Nagle's delay."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def ask(sock: socket.socket, frame: bytes) -> tuple[dict[str, Any], bytes]:
    """One request and its response: header and body. Raises LoadError when the peer closes or sends too
    much."""
    sock.sendall(frame)
    total, word = FRAME_HEAD.unpack(_exactly(sock, FRAME_HEAD.size))
    size = word & HEADER_LENGTH
    if not 4 + size <= total <= MAX_ANSWER_BYTES:
        raise LoadError(f"response of {total} bytes with a header of {size}")
    rest = _exactly(sock, total - 4)
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


def route(namesrv: str, topic: str, timeout_s: float = 5.0) -> tuple[list[str], int] | None:
    """Addresses of the master brokers of the topic and how many read queues each has, or None if the name
    server does not know it."""
    with connect(namesrv, timeout_s) as sock:
        header, body = ask(
            sock, encode(GET_ROUTE, FIRST_OPAQUE, {"topic": topic, "acceptStandardJsonOnly": "true"})
        )
    if header["code"] == TOPIC_NOT_EXIST:
        return None
    if header["code"] != SUCCESS:
        raise LoadError(f"route of {topic}: code {header['code']}: {header.get('remark')}")
    found = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
    queues = {item["brokerName"]: int(item["readQueueNums"]) for item in found["queueDatas"]}
    masters = {
        item["brokerName"]: item["brokerAddrs"]["0"]
        for item in found["brokerDatas"]
        if "0" in item["brokerAddrs"]
    }
    names = sorted(queues.keys() & masters.keys())
    if len({queues[name] for name in names}) > 1:
        raise LoadError(f"brokers have different numbers of queues of {topic}: {queues}")
    return ([masters[name] for name in names], queues[names[0]]) if names else None


def find_brokers(namesrv: str, topic: str) -> tuple[list[str], int]:
    """Broker addresses and queues of each from the route of the topic, or of the template topic (and then
    four queues) if it is new."""
    known = route(namesrv, topic)
    if known:
        return known
    template = route(namesrv, TEMPLATE_TOPIC)
    if template is None:
        raise LoadError(f"{namesrv} knows neither {topic} nor {TEMPLATE_TOPIC}")
    return template[0], 4
