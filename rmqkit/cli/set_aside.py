"""`rmqkit set-aside list|show`: the records that brokers could not pass on (`rmqkit.toolkit.set_aside`)."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

from rmqkit.cli import copying, options, shown
from rmqkit.client import Client, ClientError, NoRoute, ReceivedMessage
from rmqkit.errors import DecodeError
from rmqkit.model import set_aside
from rmqkit.model.names import SET_ASIDE_TOPIC
from rmqkit.plugin.command import Verb
from rmqkit.protocol.record import unpack
from rmqkit.toolkit import output


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = actions.add_parser("list", help="where each record was found, and why it was set aside")
    listed.add_argument("--max", type=int, metavar="N", help="stop after N records")

    show = actions.add_parser("show", help="one record: what can be read of it, and its bytes")
    show.add_argument("place", metavar="BROKER:OFFSET", type=_place, help="as `set-aside list` prints it")
    show.add_argument("--output", metavar="FILE", type=Path, help="write the bytes of the record to a file")
    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _place(text: str) -> tuple[str, int]:
    broker, separator, offset = text.rpartition(":")
    if not separator or not broker or not offset.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not of the form BROKER:OFFSET, as in broker-a:0")
    return broker, int(offset)


def _run(arguments: Namespace) -> int:
    return anyio.run(_ACTIONS[arguments.action], arguments, backend="trio")


async def _list(arguments: Namespace) -> int:
    found: list[dict[str, Any]] = []
    async with options.client_of(arguments) as client:
        async for message in _read(client, await _span(client)):
            if len(found) == arguments.max:
                break
            found.append(_described(message))
    if arguments.json:
        output.as_json(found)
        return 0
    rows = [
        (
            each["place"],
            shown.time_text(each["storeTimestamp"]),
            each["service"],
            f"{each['topic']}:{each['queueId']} offset {each['queueOffset']}",
            each["sizeBytes"],
            each["reason"],
        )
        for each in found
    ]
    output.table(("PLACE", "TIME", "SERVICE", "FOUND IN", "BYTES", "REASON"), rows)
    return 0


async def _show(arguments: Namespace) -> int:
    broker, offset = arguments.place
    async with options.client_of(arguments) as client:
        ends = await _span(client)
        span = {
            queue: (offset, offset + 1)
            for queue, (begin, end) in ends.items()
            if queue.broker_name == broker and begin <= offset < end
        }
        messages = [message async for message in _read(client, span)]
    if not messages:
        raise ClientError(
            f"{broker} has no record aside at offset {offset}; `rmqkit set-aside list` lists those there are"
        )
    (message,) = messages
    if arguments.output is not None:
        await anyio.Path(arguments.output).write_bytes(message.body)
    if arguments.json:
        readable = _readable(message.body)
        output.as_json(_described(message) | {"message": readable, "recordHex": message.body.hex()})
    else:
        _print(message)
    return 0


async def _span(client: Client) -> copying.Span:
    try:
        return await copying.span(client, SET_ASIDE_TOPIC)
    except NoRoute:
        return {}


async def _read(client: Client, span: copying.Span) -> AsyncIterator[ReceivedMessage]:
    async with client.pull_consumer(copying.READER_GROUP) as consumer:
        async for message in copying.read(consumer, span):
            yield message


def _described(message: ReceivedMessage) -> dict[str, Any]:
    origin, reason = set_aside.read(message.properties)
    return {
        "place": f"{message.queue.broker_name}:{message.queue_offset}",
        "storeTimestamp": message.store_timestamp_ms,
        "service": origin.service,
        "topic": origin.topic,
        "queueId": origin.queue_id,
        "queueOffset": origin.queue_offset,
        "physicalOffset": origin.physical_offset,
        "sizeBytes": len(message.body),
        "reason": reason,
    }


def _readable(record: bytes) -> dict[str, Any] | None:
    """What a record says, whether its checksum is right or not; None when it cannot be read at all."""
    try:
        found = unpack(record, check_crc=False)
    except DecodeError:
        return None
    return {
        "topic": found.topic,
        "queueId": found.queue_id,
        "bornTimestamp": found.born_timestamp_ms,
        "reconsumeTimes": found.reconsume_times,
        "properties": found.properties,
        "bodyHex": found.body.hex(),
    }


def _print(message: ReceivedMessage) -> None:
    described = _described(message)
    readable = _readable(message.body) or {"topic": "-", "properties": {}, "bodyHex": ""}
    lines = {
        "set aside": f"{shown.time_text(described['storeTimestamp'])} by {described['service']}",
        "reason": described["reason"],
        "found in": f"{described['topic']}:{described['queueId']} offset {described['queueOffset']}",
        "log offset": described["physicalOffset"],
        "record": f"{described['sizeBytes']} bytes",
        "topic": readable["topic"],
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(readable["properties"].items())),
        "body": bytes.fromhex(readable["bodyHex"]).decode("utf-8", "backslashreplace"),
    }
    for name, value in lines.items():
        output.line(f"{name + ':':<12}{value}")


_ACTIONS = {"list": _list, "show": _show}

SET_ASIDE = Verb("records that brokers could not pass on: list, show", _arguments, _run)
