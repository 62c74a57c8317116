"""Sends that no client of this project makes, such as a body that is marked as compressed and is not."""

from __future__ import annotations

import socket

from rmqkit.protocol import frame
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import SendMessageRequestHeaderV2


def send_raw(address: str, topic: str, body: bytes, *, sys_flag: int = 0, properties: str = "") -> None:
    """Send a message to the first queue of a topic of the broker at an address, and wait for the answer."""
    header = SendMessageRequestHeaderV2(
        producer_group="raw",
        topic=topic,
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=sys_flag,
        properties=properties,
    )
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(frame.encode(request(RequestCode.SEND_MESSAGE_V2, header, body)))
        assert connection.recv(65_536), "the broker has closed the connection"
