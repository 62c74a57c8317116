"""`rmqkit send` and `rmqkit consume`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Any

import anyio

from rmqkit import Message
from rmqkit.cli import options, output
from rmqkit.cli.clients import client_of
from rmqkit.cli.verbs import Verb
from rmqkit.client import Client, PullConsumer, ReceivedMessage, SendResult, StreamOptions
from rmqkit.errors import ConfigError, NoRoute


def _send_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("body", nargs="?", help="the message's text; without it every line of standard input is a message")
    parser.add_argument("--tag")
    parser.add_argument("--key", action="append", default=[], help="index key to look the message up by; repeatable")
    parser.add_argument("--property", type=options.key_value, action="append", default=[], metavar="KEY=VALUE", help="repeatable")
    parser.add_argument("--ordering-key", help="messages of equal key go to one queue, in order")
    parser.add_argument("--delay-level", type=int, help="1 to 18: 1s 5s 10s 30s 1m ... 2h")
    parser.add_argument("--group", default="rmqkit_cli_producer")
    options.add_client(parser)
    options.add_json(parser)


def _send(arguments: Namespace) -> int:
    return anyio.run(_send_all, arguments, backend="trio")


async def _send_all(arguments: Namespace) -> int:
    bodies = [arguments.body.encode()] if arguments.body is not None else [line.rstrip(b"\n") for line in sys.stdin.buffer]
    if not any(bodies):
        raise ConfigError("there is nothing to send: give a text, or lines on standard input")
    async with client_of(arguments) as client, client.producer(arguments.group) as producer:
        for body in filter(None, bodies):
            message = Message(
                arguments.topic,
                body,
                tag=arguments.tag,
                keys=arguments.key,
                properties=dict(arguments.property),
                ordering_key=arguments.ordering_key,
                delay_level=arguments.delay_level,
            )
            _show_sent(await producer.send(message), arguments.json)
    return 0


def _show_sent(result: SendResult, json: bool) -> None:
    if json:
        output.json_line(
            {
                "status": result.status.name,
                "messageId": result.message_id,
                "offsetMessageId": result.offset_message_id,
                "brokerName": result.queue.broker_name,
                "queueId": result.queue.queue_id,
                "queueOffset": result.queue_offset,
            }
        )
    else:
        output.line(f"{result.status.name} {result.message_id} {result.queue} offset {result.queue_offset}")


def _consume_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--group", default="rmqkit_cli_consumer")
    parser.add_argument("--tags", default="*", metavar="EXPRESSION", help="tags joined by ||, as in 'TagA || TagB' (default *, all)")
    parser.add_argument("--from", dest="start", default="first", choices=["first", "last"], help="where a group without offsets begins")
    parser.add_argument("--max", type=int, metavar="N", help="stop after N messages")
    parser.add_argument("--follow", action="store_true", help="wait for further messages instead of stopping at the end")
    options.add_client(parser)
    options.add_json(parser)


def _consume(arguments: Namespace) -> int:
    return anyio.run(_consume_all, arguments, backend="trio")


async def _consume_all(arguments: Namespace) -> int:
    if arguments.max is not None and arguments.max < 1:
        raise ConfigError("--max takes a number from 1 on")
    async with client_of(arguments) as client, client.pull_consumer(arguments.group) as consumer:
        await _check_topic(client, arguments.topic)
        left = arguments.max
        if arguments.follow:
            stream = consumer.messages(arguments.topic, expression=arguments.tags, options=StreamOptions(start=arguments.start))
            async for message in stream:
                _show_received(message, arguments.json)
                left = None if left is None else left - 1
                if left == 0:
                    await stream.commit()
                    break
            return 0
        await _drain(consumer, arguments, left)
    return 0


async def _check_topic(client: Client, topic: str) -> None:
    if await client.admin.route(topic) is None:
        raise NoRoute(topic, f"it does not exist; see `rmqkit topic list`, create it with `rmqkit topic create {topic}`")


async def _drain(consumer: PullConsumer, arguments: Namespace, left: int | None) -> None:
    """Everything up to where the queues end now, queue by queue, committing what was printed."""
    for queue in await consumer.queues(arguments.topic):
        end = await consumer.max_offset(queue)
        offset = await consumer.committed(queue)
        if offset is None:
            offset = await consumer.min_offset(queue) if arguments.start == "first" else end
        while offset < end and left != 0:
            result = await consumer.pull(queue, offset, expression=arguments.tags, max_messages=32 if left is None else min(left, 32))
            for message in result.messages:
                _show_received(message, arguments.json)
            left = None if left is None else left - len(result.messages)
            offset = result.next_offset
            await consumer.commit(queue, offset)


def _show_received(message: ReceivedMessage, json: bool) -> None:
    if json:
        output.json_line(_as_dict(message))
        return
    stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    tag = f" [{message.tag}]" if message.tag else ""
    output.line(f"{stored} {message.queue} offset {message.queue_offset}{tag} {message.body.decode('utf-8', 'backslashreplace')}")


def _as_dict(message: ReceivedMessage) -> dict[str, Any]:
    try:
        body: dict[str, Any] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyHex": message.body.hex()}
    return {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "storeTimestamp": message.store_timestamp_ms,
        "bornTimestamp": message.born_timestamp_ms,
        "reconsumeTimes": message.reconsume_times,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        **body,
    }


SEND = Verb("send messages", _send_arguments, _send)
CONSUME = Verb("print messages of a topic", _consume_arguments, _consume)
