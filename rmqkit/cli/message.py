"""`rmqkit message get|find|recall`: messages, where they are stored, and who consumed them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator

import anyio

from rmqkit.cli import copying, options, shown
from rmqkit.cli.send import PRODUCER_GROUP
from rmqkit.client import Client, ReceivedMessage
from rmqkit.client.cluster.admin import FOREVER_MS
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.client.cluster.message_views import MessageView, message_view, messages_by_id, view_dict
from rmqkit.errors import ConfigError
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

_MOST = 64


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    get = actions.add_parser("get", help="a message by its id, and the groups that consumed it")
    get.add_argument("id", help="an offset message id; with --topic also the id that the producer gave it")
    get.add_argument("--topic", help="the topic of the message")

    find = actions.add_parser("find", help="messages of a topic by key or time")
    add = find.add_argument
    add("topic")
    add("--key", help="only messages with this key, from the brokers' index")
    times = "10m (an age), 2026-05-01T10:00, or ms since 1970"
    add("--since", metavar="TIME", type=shown.moment, default=0, help=f"stored then or later: {times}")
    add("--until", metavar="TIME", type=shown.moment, default=END_MS, help="stored before it (default: now)")
    options.add_expression(find)
    add("--max", type=int, default=_MOST, metavar="N", help=f"at most N messages (default {_MOST})")
    recall = actions.add_parser("recall", help="take a message back that waits for its time of delivery")
    recall.add_argument("topic")
    recall.add_argument("handle", help="the recall handle that sending it has printed")
    group = f"producer group (default {PRODUCER_GROUP})"
    recall.add_argument("--group", default=PRODUCER_GROUP, help=group)
    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _run(arguments: Namespace) -> int:
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        return await _ACTIONS[arguments.action](client, arguments)


async def _find(client: Client, arguments: Namespace) -> int:
    """The exit code is 1 when nothing was found."""
    options.check_text(arguments, "topic", "key", "tag", "sql", "filter")
    if arguments.max < 1:
        raise ConfigError("--max must be at least 1")
    if arguments.key is not None and (arguments.tag or arguments.sql or arguments.filter):
        raise ConfigError("--key and an expression exclude each other")
    found = 0
    async for message in _matching(client, arguments):
        found += 1
        if arguments.json:
            output.json_line(shown.message_dict(message))
        else:
            output.line(f"{message.message_id} {shown.message_text(message)}")
        if found == arguments.max:
            break
    if not found:
        output.error("no message matches")
    return 0 if found else 1


async def _matching(client: Client, arguments: Namespace) -> AsyncIterator[ReceivedMessage]:
    if arguments.key is not None:
        end_ms = FOREVER_MS if arguments.until == END_MS else arguments.until - 1
        for message in await client.admin.query_by_key(
            arguments.topic,
            arguments.key,
            max_messages=arguments.max,
            begin_ms=arguments.since,
            end_ms=end_ms,
        ):
            yield message
        return
    expression, kind = options.expression_of(arguments)
    async with copying.reader(client) as consumer:
        offsets = await copying.span(client, arguments.topic, arguments.since, arguments.until)
        async for message in copying.read(consumer, offsets, expression, kind):
            yield message


async def _get(client: Client, arguments: Namespace) -> int:
    """Several messages may have one id: a retry of its producer stored it again."""
    options.check_text(arguments, "id", "topic")
    found = []
    for message in await messages_by_id(client.admin, arguments.id, arguments.topic):
        view = await message_view(client.admin, client.groups, message)
        if arguments.json:
            found.append(view_dict(view))
        else:
            _print(view)
    if arguments.json:
        output.as_json(found)
    return 0


async def _recall(client: Client, arguments: Namespace) -> int:
    options.check_text(arguments, "topic", "handle", "group")
    async with client.producer(arguments.group) as producer:
        message_id = await producer.recall(arguments.topic, arguments.handle)
    if arguments.json:
        output.as_json({"topic": arguments.topic, "messageId": message_id})
    else:
        output.line(f"recalled {message_id}")
    return 0


_ACTIONS = {"get": _get, "find": _find, "recall": _recall}


def _print(view: MessageView) -> None:
    message = view.message
    lines = {
        "message id": message.message_id,
        "offset message id": message.offset_message_id,
        "topic": message.topic,
        "queue": f"{shown.queue_text(message.queue)} offset {message.queue_offset}",
        "stored": f"{shown.time_text(message.store_timestamp_ms)} at {message.store_host}",
        "sent": f"{shown.time_text(message.born_timestamp_ms)} by {message.born_host}",
        "tag": message.tag or "-",
        "keys": " ".join(message.keys) or "-",
        "reconsumed": f"{message.reconsume_times} times",
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(message.properties.items())),
        "body": message.body.decode("utf-8", "backslashreplace"),
    }
    if message.fault is not None:
        lines["fault"] = message.fault
    for name, value in lines.items():
        output.line(f"{name + ':':<19}{value}")
    output.line()
    consumers = [
        (
            each.group,
            each.state.value,
            "-" if each.committed is None else each.committed,
            "yes" if each.online else "no",
        )
        for each in view.consumers
    ]
    output.table(("GROUP", "STATE", "COMMITTED", "ONLINE"), consumers)
    if view.events:
        output.line()
        output.table(
            ("EVENT", "TIME", "GROUP", "COST", "RESULT"),
            [
                (
                    each.kind,
                    shown.time_text(each.time_ms),
                    each.group,
                    shown.span_text(each.cost_ms),
                    "ok" if each.success else "failed",
                )
                for each in view.events
            ],
        )
    if view.copies:
        output.line()
        output.table(
            ("GROUP", "KEPT AS", "STORED", "DELIVERIES", "OFFSET MESSAGE ID", "WHY"),
            [
                (
                    each.group,
                    each.kept.value,
                    shown.time_text(each.store_timestamp_ms),
                    each.deliveries,
                    each.offset_message_id,
                    "-" if each.reason is None else f"{each.reason.cause}: {each.reason.error or '-'}",
                )
                for each in view.copies
            ],
        )


MESSAGE = Verb("messages by id, key or time, with the groups that consumed them; recalls", _arguments, _run)
