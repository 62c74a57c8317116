"""`rmqkit send` and `rmqkit consume`."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio
import anyio.to_thread

from rmqkit import Message, MessageQueue
from rmqkit.cli import options, shown
from rmqkit.client import Client, PullConsumer, ReceivedMessage, SendResult, StreamOptions
from rmqkit.errors import ConfigError, NoRoute
from rmqkit.plugin import output
from rmqkit.plugin.command import Verb

#: Bytes per read of standard input.
_READ_BYTES = 65_536
_PULL_MESSAGES = 32
_COMMITTED = "committed"
_PRODUCER_GROUP = "rmqkit_cli_producer"
_CONSUMER_GROUP = "rmqkit_cli_consumer"


def _send_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument(
        "body", nargs="?", help="the message (default: every line of standard input is sent as a message)"
    )
    parser.add_argument("--tag", help="tag that consumers can filter by")
    parser.add_argument("--key", action="append", default=[], help="key for message queries; repeatable")
    options.add_pairs(parser, "--property", "repeatable")
    parser.add_argument("--ordering-key", help="messages with the same key go to one queue, in order")
    parser.add_argument("--delay-level", type=int, help="1 to 18: 1s 5s 10s 30s 1m ... 2h")
    parser.add_argument(
        "--group", default=_PRODUCER_GROUP, help=f"producer group (default {_PRODUCER_GROUP})"
    )
    options.add_client(parser)
    options.add_json(parser)


def _send(arguments: Namespace) -> int:
    options.check_text(arguments, "topic", "tag", "key", "property", "ordering_key", "group")
    return anyio.run(_send_all, arguments, backend="trio")


async def _send_all(arguments: Namespace) -> int:
    """Send the messages one after the other, in input order. When cancelled, every printed message was sent,
    and possibly one more."""
    bodies = _lines() if arguments.body is None else _only(os.fsencode(arguments.body))
    fields: Any = {name: getattr(arguments, name) for name in ("tag", "ordering_key", "delay_level")}
    fields |= {"keys": arguments.key, "properties": dict(arguments.property)}
    sent = 0
    async with options.client_of(arguments) as client, client.producer(arguments.group) as producer:
        async for body in bodies:
            if not body:
                continue
            _show_sent(await producer.send(Message(arguments.topic, body, **fields)), arguments.json)
            sent += 1
    if not sent:
        raise ConfigError("there is nothing to send: pass a text, or lines on standard input")
    return 0


async def _only(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _lines() -> AsyncIterator[bytes]:
    """Lines of standard input without their line ends, each as soon as it is complete; the last line may lack
    its end."""
    descriptor = sys.stdin.fileno()
    started: list[bytes] = []
    while True:
        # Not read through sys.stdin: an abandoned thread would keep its lock, and Python could not exit.
        data = await anyio.to_thread.run_sync(os.read, descriptor, _READ_BYTES, abandon_on_cancel=True)
        if not data:
            break
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield b"".join((*started, line))
            started.clear()
        started.append(rest)
    yield b"".join(started)


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
    group = f"consumer group, which continues where it stopped the last time (default {_CONSUMER_GROUP})"
    parser.add_argument("--group", default=_CONSUMER_GROUP, help=group)
    tags = "tags joined by ||, as in 'TagA || TagB' (default *, all)"
    parser.add_argument("--tags", default="*", metavar="EXPRESSION", help=tags)
    starts = [_COMMITTED, "first", "last"]
    start = (
        "where to begin: committed, where the group stopped, which is the first message for a new group (the"
        " default); first, the first message of the topic; last, only messages that arrive from now on"
    )
    parser.add_argument("--from", dest="start", default=_COMMITTED, choices=starts, help=start)
    member = (
        "share the queues with the other members of the group, until SIGTERM or SIGINT; --from counts for"
        " queues that the group has not read"
    )
    parser.add_argument("--member", action="store_true", help=member)
    parser.add_argument("--max", type=int, metavar="N", help="stop after N messages")
    parser.add_argument(
        "--follow", action="store_true", help="wait for further messages instead of stopping at the end"
    )
    options.add_client(parser)
    options.add_json(parser)


def _consume(arguments: Namespace) -> int:
    options.check_text(arguments, "topic", "group", "tags")
    return anyio.run(_consume_all, arguments, backend="trio")


async def _consume_all(arguments: Namespace) -> int:
    if arguments.max is not None and arguments.max < 1:
        raise ConfigError("--max must be at least 1")
    if arguments.member:
        await _consume_as_member(arguments)
        return 0
    async with options.client_of(arguments) as client, client.pull_consumer(arguments.group) as consumer:
        await _check_topic(client, arguments.topic)
        starts = await _starts(consumer, arguments)
        if arguments.follow:
            await _follow(consumer, arguments, starts)
        elif not await _drain(consumer, arguments, starts):
            output.error(
                f"no messages to print: group {arguments.group} is at the end of topic {arguments.topic};"
                " --follow waits for more"
            )
    return 0


async def _consume_as_member(arguments: Namespace) -> None:
    """Print what this member of the group gets. A message counts as finished when it has been printed."""
    start: Literal["first", "last"] = "last" if arguments.start == "last" else "first"
    subscribe = {arguments.topic: arguments.tags}
    left = arguments.max
    async with options.client_of(arguments) as client, anyio.create_task_group() as tasks:
        await _check_topic(client, arguments.topic)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with client.push_consumer(arguments.group, subscribe=subscribe, start=start) as consumer:

                async def watch() -> None:
                    async for _ in signals:
                        consumer.stop()

                tasks.start_soon(watch)
                async for delivery in consumer:
                    _show_received(delivery.message, arguments.json)
                    async with delivery:
                        left = None if left is None else left - 1
                    if left == 0:
                        consumer.stop()
            tasks.cancel_scope.cancel()


async def _starts(consumer: PullConsumer, arguments: Namespace) -> dict[MessageQueue, int]:
    """The start offset of each queue. Messages skipped because of a committed offset are reported."""
    starts: dict[MessageQueue, int] = {}
    skipped = 0
    for queue in await consumer.queues(arguments.topic):
        first = await consumer.min_offset(queue)
        committed = await consumer.committed(queue) if arguments.start == _COMMITTED else None
        if arguments.start == "last":
            starts[queue] = await consumer.max_offset(queue)
        elif committed is None:
            starts[queue] = first
        else:
            starts[queue] = committed
            skipped += max(committed - first, 0)
    if skipped:
        messages = "1 message" if skipped == 1 else f"{skipped} messages"
        output.error(
            f"group {arguments.group} continues where it stopped and skips {messages}; --from first reads"
            " from the start"
        )
    return starts


async def _follow(consumer: PullConsumer, arguments: Namespace, starts: dict[MessageQueue, int]) -> None:
    left = arguments.max
    options = StreamOptions(offsets=starts)
    stream = consumer.messages(arguments.topic, expression=arguments.tags, options=options)
    async for message in stream:
        _show_received(message, arguments.json)
        left = None if left is None else left - 1
        if left == 0:
            await stream.commit()
            break


async def _check_topic(client: Client, topic: str) -> None:
    if await client.admin.route(topic) is None:
        raise NoRoute(
            topic, f"topic unknown; see `rmqkit topic list`, create it with `rmqkit topic create {topic}`"
        )


async def _drain(consumer: PullConsumer, arguments: Namespace, starts: dict[MessageQueue, int]) -> int:
    """Print everything up to the present end of each queue, queue by queue, and commit what was printed.
    Returns the number of messages."""
    printed = 0
    for queue, offset in starts.items():
        end = await consumer.max_offset(queue)
        while offset < end and printed != arguments.max:
            wanted = _PULL_MESSAGES if arguments.max is None else min(arguments.max - printed, _PULL_MESSAGES)
            result = await consumer.pull(queue, offset, expression=arguments.tags, max_messages=wanted)
            for message in result.messages:
                _show_received(message, arguments.json)
            printed += len(result.messages)
            offset = result.next_offset
            await consumer.commit(queue, offset)
    return printed


def _show_received(message: ReceivedMessage, json: bool) -> None:
    if json:
        output.json_line(shown.message_dict(message))
    else:
        output.line(shown.message_text(message))


SEND = Verb("send messages", _send_arguments, _send)
CONSUME = Verb("print messages of a topic", _consume_arguments, _consume)
