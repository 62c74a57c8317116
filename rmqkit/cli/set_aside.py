"""`rmqkit set-aside list|show|resend`: the records that brokers could not pass on
(`rmqkit.toolkit.set_aside`)."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
from attrs import evolve

from rmqkit.cli import copying, options, shown
from rmqkit.cli.send import PRODUCER_GROUP
from rmqkit.client import Client, ClientError, NoRoute, ReceivedMessage
from rmqkit.client.cluster.set_aside_views import RESEND_GROUP
from rmqkit.client.consumer.received import received
from rmqkit.errors import DecodeError
from rmqkit.model import properties as props
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

    resend = actions.add_parser("resend", help="send the messages in the records again")
    add = resend.add_argument
    which = resend.add_mutually_exclusive_group(required=True)
    place = "as `set-aside list` prints it; repeatable"
    which.add_argument("--place", action="append", metavar="BROKER:OFFSET", type=_place, help=place)
    which.add_argument("--all", action="store_true", help="all that --all has not sent again before")
    add("--again", action="store_true", help="with --all: begin at the first one")
    add("--to", metavar="TOPIC", help="default: the topic that each message was sent to")
    options.add_rate(resend)
    add("--dry-run", action="store_true", help="list the messages and send nothing")
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
        ((span,), _) = _chosen(await _span(client), [arguments.place])
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


async def _resend(arguments: Namespace) -> int:
    """The exit code is 1 when a message failed, or a place has no record."""
    async with options.client_of(arguments) as client:
        spans, missing = _chosen(await _span(client), arguments.place)
        async with (
            client.producer(PRODUCER_GROUP) as producer,
            copying.reader(client, RESEND_GROUP) as consumer,
        ):
            if arguments.all and not arguments.again:
                spans = [await copying.unsent(consumer, span) for span in spans]
            sending = copying.Sending(producer, arguments.rate, sum(map(copying.count, spans)))
            keeper = consumer if arguments.all and not arguments.dry_run else None
            again = (
                await _again(message, arguments.to)
                for span in spans
                async for message in copying.read(consumer, span)
            )
            await copying.resend(again, sending, keeper, dry_run=arguments.dry_run)
    for each in missing:
        output.error(f"{each} has no record aside; `rmqkit set-aside list` lists those there are")
    if arguments.json and not arguments.dry_run:
        output.as_json({"sent": sending.sent, "failed": sending.failed, "missing": missing})
    elif not arguments.dry_run:
        output.line(f"{sending.sent} sent, {sending.failed} failed")
    return 1 if sending.failed or missing else 0


def _chosen(
    ends: copying.Span, places: Sequence[tuple[str, int]] | None
) -> tuple[list[copying.Span], list[str]]:
    """The offsets of the records at some places, all by default, and the places without a record."""
    if places is None:
        return [ends], []
    chosen: list[copying.Span] = []
    missing = []
    for broker, offset in sorted(set(places)):
        found = {
            queue: (offset, offset + 1)
            for queue, (begin, end) in ends.items()
            if queue.broker_name == broker and begin <= offset < end
        }
        chosen.append(found)
        if not found:
            missing.append(f"{broker}:{offset}")
    return chosen, missing


async def _again(message: ReceivedMessage, to: str | None) -> copying.Again:
    """The message in a record, at the place of the record. A record that cannot be decoded has a fault."""
    if message.body:
        inner = (await received(message.body, message.queue.broker_name)).messages[0]
    else:
        inner = evolve(message, properties={}, fault="its bytes were not kept; the log may have them")
    topic = to or inner.properties.get(props.REAL_TOPIC) or inner.properties.get(props.RETRY_TOPIC)
    origin = evolve(inner, queue=message.queue, queue_offset=message.queue_offset)
    place = f"{message.queue.broker_name}:{message.queue_offset}"
    return copying.Again(place, origin, copying.again(inner, topic or inner.topic))


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


_ACTIONS = {"list": _list, "show": _show, "resend": _resend}

SET_ASIDE = Verb("records that brokers could not pass on: list, show, resend", _arguments, _run)
