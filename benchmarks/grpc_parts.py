"""Where the processor time of a gRPC call goes: HTTP/2, protobuf, and the rest.

    python -m benchmarks.grpc_parts [--calls 20000]

Each part runs alone in this process, on what a client sends for SendMessage, ReceiveMessage with one message,
and AckMessage. What is left of the time that a server needs for a call (benchmarks.grpc_calls) is the
pipeline of requests: checks, hooks, the store, sockets, the event loop."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from jh2.config import H2Configuration
from jh2.connection import H2Connection

from benchmarks.code import tell_code
from rmqkit_grpc.framing import framed
from rmqkit_grpc.http2 import Asked, Ended, Http2
from rmqkit_grpc.messages import PACKAGE, V2

M = V2.messages
_BODY = b"x" * 1_024
_HEADERS = ((":status", "200"), ("content-type", "application/grpc"))
_TRAILERS = (("grpc-status", "0"),)
_IN_FLIGHT = 64
_HANDLE = "1000 1764288000000 60000 3 0 broker-a 2 1000 123456789"


def _message(body: bytes) -> Any:
    message = M["Message"](body=body)
    message.topic.name = "Orders"
    system = message.system_properties
    system.message_id = "01A1B2C3D4E5F60718293A4B5C6D7E8F9"
    system.message_type, system.body_encoding = 1, 1
    system.born_timestamp.FromMilliseconds(1_764_288_000_000)
    system.born_host = "producer-7"
    return message


def _delivered() -> Any:
    message = _message(_BODY)
    system = message.system_properties
    system.receipt_handle, system.queue_id, system.queue_offset = _HANDLE, 2, 1_000
    system.store_host, system.delivery_attempt = "10.0.0.7:10911", 1
    system.store_timestamp.FromMilliseconds(1_764_288_000_100)
    system.body_digest.checksum = "D41D8CD98F00B204E9800998ECF8427E"
    return message


def _receive_answers() -> list[Any]:
    status = M["ReceiveMessageResponse"](status=M["Status"](code=20000, message="OK"))
    last = M["ReceiveMessageResponse"]()
    last.delivery_timestamp.FromMilliseconds(1_764_288_000_200)
    return [status, M["ReceiveMessageResponse"](message=_delivered()), last]


def _send() -> tuple[str, Any, Callable[[], list[Any]]]:
    def answers() -> list[Any]:
        answer = M["SendMessageResponse"](status=M["Status"](code=20000, message="OK"))
        answer.entries.add(message_id="01A1B2C3D4E5F60718293A4B5C6D7E8F9", offset=1_000)
        return [answer]

    return "SendMessage", M["SendMessageRequest"](messages=[_message(_BODY)]), answers


def _receive() -> tuple[str, Any, Callable[[], list[Any]]]:
    asked = M["ReceiveMessageRequest"](batch_size=1)
    asked.group.name, asked.message_queue.topic.name = "billing", "Orders"
    asked.filter_expression.expression, asked.invisible_duration.seconds = "*", 30
    return "ReceiveMessage", asked, _receive_answers


def _ack() -> tuple[str, Any, Callable[[], list[Any]]]:
    asked = M["AckMessageRequest"]()
    asked.group.name, asked.topic.name = "billing", "Orders"
    asked.entries.add(message_id="01A1B2C3D4E5F60718293A4B5C6D7E8F9", receipt_handle=_HANDLE)

    def answers() -> list[Any]:
        status = M["Status"](code=20000, message="OK")
        answer = M["AckMessageResponse"](status=status)
        answer.entries.add(receipt_handle=_HANDLE, status=status)
        return [answer]

    return "AckMessage", asked, answers


def http2_us(name: str, asked: Any, answers: Callable[[], list[Any]], calls: int) -> float:
    """Of the server's HTTP/2 for one call, with 64 in flight."""
    client, server = H2Connection(H2Configuration(client_side=True)), Http2()
    client.initiate_connection()
    server.receive(client.data_to_send(), 0.0)
    client.receive_data(server.take())
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{PACKAGE}.MessagingService/{name}"),
        (":authority", "broker.example:8081"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.72.0"),
        ("x-mq-client-id", "host@1@2@abc"),
        ("x-mq-language", "GOLANG"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.1.4"),
        ("grpc-timeout", "10S"),
    ]
    request = framed(asked.SerializeToString())
    answer = b"".join(framed(each.SerializeToString()) for each in answers())
    spent_s, stream = 0.0, 1
    for _ in range(0, calls, _IN_FLIGHT):
        for _ in range(_IN_FLIGHT):
            client.send_headers(stream, headers)
            client.send_data(stream, request, end_stream=True)
            stream += 2
        data = client.data_to_send()
        began_s = time.process_time()
        for event in server.receive(data, 0.0):
            if isinstance(event, Ended):
                server.respond(event.stream, _HEADERS)
                server.send(event.stream, answer)
                server.finish(event.stream, _TRAILERS)
            elif isinstance(event, Asked):
                _ = event.headers
        back = server.take()
        spent_s += time.process_time() - began_s
        while back:
            for arrived in client.receive_data(back):
                length = getattr(arrived, "flow_controlled_length", 0)
                if length:
                    client.acknowledge_received_data(length, arrived.stream_id)
            updates = client.data_to_send()
            began_s = time.process_time()
            server.receive(updates, 0.0)
            back = server.take()
            spent_s += time.process_time() - began_s
    return spent_s / calls * 1e6


def protobuf_us(name: str, asked: Any, answers: Callable[[], list[Any]], calls: int) -> float:
    """Of reading the request, and making and writing the answers."""
    kind, data = type(asked), asked.SerializeToString()
    began_s = time.process_time()
    for _ in range(calls):
        kind.FromString(data)
        for each in answers():
            each.SerializeToString()
    return (time.process_time() - began_s) / calls * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_parts")
    parser.add_argument("--calls", type=int, default=20_000)
    given = parser.parse_args(argv)
    tell_code()
    for make in (_send, _receive, _ack):
        name, asked, answers = make()
        found = http2_us(name, asked, answers, given.calls), protobuf_us(name, asked, answers, given.calls)
        print(f"{name:16} HTTP/2 {found[0]:5.1f} us   protobuf {found[1]:5.1f} us", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
