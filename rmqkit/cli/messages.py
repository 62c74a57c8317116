"""`rmqkit consume` and `rmqkit tail`."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Literal

import anyio

from rmqkit import MessageQueue
from rmqkit.cli import copying, options, shown
from rmqkit.client import Client, LitePullConsumer, PullConsumer, ReceivedMessage
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.client.consumer.options import Expression
from rmqkit.errors import ConfigError, NoRoute
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

_PULL_MESSAGES = 32
_COMMITTED = "committed"
_CONSUMER_GROUP = "rmqkit_cli_consumer"
_TAIL_GROUP = "rmqkit_cli_tail"


def _consume_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic")
    group = f"consumer group, which continues where it stopped the last time (default {_CONSUMER_GROUP})"
    parser.add_argument("--group", default=_CONSUMER_GROUP, help=group)
    options.add_expression(parser)
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
    options.check_text(arguments, "topic", "group", "tag", "sql", "filter")
    return anyio.run(_consume_all, arguments, backend="trio")


async def _consume_all(arguments: Namespace) -> int:
    _check_max(arguments)
    if arguments.member:
        await _consume_as_member(arguments)
        return 0
    async with options.client_of(arguments) as client:
        async with copying.reader(client, arguments.group) as consumer:
            await _check_topic(client, arguments.topic)
            starts, corrected = await _starts(consumer, arguments)
            if not arguments.follow and not await _drain(consumer, arguments, starts) and not corrected:
                output.error(
                    f"no messages to print: group {arguments.group} is at the end of topic"
                    f" {arguments.topic}; --follow waits for more"
                )
        if arguments.follow:
            await _follow(client, arguments, list(starts))
    return 0


def _check_max(arguments: Namespace) -> None:
    if arguments.max is not None and arguments.max < 1:
        raise ConfigError("--max must be at least 1")


async def _consume_as_member(arguments: Namespace) -> None:
    """Print what this member of the group gets. A message counts as finished when it has been printed."""
    start: Literal["first", "last"] = "last" if arguments.start == "last" else "first"
    subscribe = {arguments.topic: _expression(arguments)}
    left = arguments.max
    async with options.client_of(arguments) as client, anyio.create_task_group() as tasks:
        await _check_topic(client, arguments.topic)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with client.push_consumer(
                arguments.group, subscribe=subscribe, start=start, bad_records="deliver"
            ) as consumer:

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


async def _starts(consumer: PullConsumer, arguments: Namespace) -> tuple[dict[MessageQueue, int], bool]:
    """The start offset of each queue, and whether one was beyond the end of its queue: the broker says where
    to go on then. Both that and messages skipped because of a committed offset are reported."""
    starts: dict[MessageQueue, int] = {}
    skipped, corrected = 0, False
    for queue in await consumer.queues(arguments.topic):
        first = await consumer.min_offset(queue)
        committed = await consumer.committed(queue) if arguments.start == _COMMITTED else None
        if arguments.start == "last":
            starts[queue] = await consumer.max_offset(queue)
        elif committed is None:
            starts[queue] = first
        elif committed > (end := await consumer.max_offset(queue)):
            corrected = True
            starts[queue] = (await consumer.pull(queue, committed, max_messages=1)).next_offset
            await consumer.commit(queue, starts[queue])
            output.error(
                f"the offset {committed} of group {arguments.group} is beyond the end {end} of {queue}: it"
                f" goes on at {starts[queue]}; --from first reads from the start"
            )
        else:
            starts[queue] = committed
            skipped += max(committed - first, 0)
    if skipped:
        messages = "1 message" if skipped == 1 else f"{skipped} messages"
        output.error(
            f"group {arguments.group} continues where it stopped and skips {messages}; --from first reads"
            " from the start"
        )
    return starts, corrected


def _expression(arguments: Namespace) -> str | Expression:
    expression, kind = options.expression_of(arguments)
    return expression if kind is None else Expression(expression, kind)


async def _follow(client: Client, arguments: Namespace, queues: list[MessageQueue]) -> None:
    """Print what is there and what comes, of all queues, and commit what was printed."""
    async with client.lite_pull_consumer(arguments.group, start="first", bad_records="deliver") as consumer:
        await consumer.assign(queues, expression=_expression(arguments))
        for queue in queues:
            if arguments.start == "first":
                await consumer.seek_to_begin(queue)
            elif arguments.start == "last":
                await consumer.seek_to_end(queue)
        await _print_each(consumer, arguments)
        await consumer.commit()


async def _print_each(consumer: LitePullConsumer, arguments: Namespace) -> None:
    """Print messages until the number is reached."""
    left = arguments.max
    async for message in consumer:
        _show_received(message, arguments.json)
        left = None if left is None else left - 1
        if left == 0:
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
    expression, kind = options.expression_of(arguments)
    for queue, offset in starts.items():
        end = await consumer.max_offset(queue)
        while offset < end and printed != arguments.max:
            wanted = _PULL_MESSAGES if arguments.max is None else min(arguments.max - printed, _PULL_MESSAGES)
            result = await consumer.pull(
                queue, offset, expression=expression, expression_type=kind, max_messages=wanted
            )
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


def _tail_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic")
    start = parser.add_mutually_exclusive_group()
    since = "begin at a time: 10m (an age), 2026-05-01T10:00, or ms since 1970 (default: now)"
    start.add_argument("--since", metavar="TIME", type=shown.moment, default=END_MS, help=since)
    start.add_argument(
        "--from-first",
        dest="since",
        action="store_const",
        const=0,
        default=END_MS,
        help="begin at the first message of the topic",
    )
    options.add_expression(parser)
    parser.add_argument("--max", type=int, metavar="N", help="stop after N messages")
    options.add_client(parser)
    options.add_json(parser)


def _tail(arguments: Namespace) -> int:
    options.check_text(arguments, "topic", "tag", "sql", "filter")
    return anyio.run(_tail_all, arguments, backend="trio")


async def _tail_all(arguments: Namespace) -> int:
    """Print messages until the number is reached or the verb is interrupted. Nothing is committed."""
    _check_max(arguments)
    start: Literal["first", "last"] | datetime = "last"
    if arguments.since != END_MS:
        start = datetime.fromtimestamp(arguments.since / 1000, UTC) if arguments.since else "first"
    assigned = anyio.Event()
    async with options.client_of(arguments) as client:
        await _check_topic(client, arguments.topic)
        async with client.lite_pull_consumer(
            _TAIL_GROUP,
            subscribe={arguments.topic: _expression(arguments)},
            start=start,
            broadcast=True,
            auto_commit=False,
            bad_records="deliver",
            on_rebalance=lambda _: assigned.set(),
        ) as consumer:
            await assigned.wait()
            output.error(f"following topic {arguments.topic}")
            await _print_each(consumer, arguments)
    return 0


CONSUME = Verb("print messages of a topic", _consume_arguments, _consume)
TAIL = Verb("follow the messages of a topic, and commit nothing", _tail_arguments, _tail)
