"""`rmqkit dlq list|show|resend`: the messages that a group could not consume."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator

import anyio

from rmqkit.cli import copying, options, shown
from rmqkit.cli.send import PRODUCER_GROUP
from rmqkit.client import Client, ClientError, NoRoute, PullConsumer, ReceivedMessage
from rmqkit.client.cluster.copying import ORIGINAL, dead_letter_again
from rmqkit.client.cluster.dead_letter_views import (
    RESEND_GROUP,
    dead_letter_dict,
    dead_letters,
    origin_topic,
    reason,
)
from rmqkit.model.names import dlq_topic
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="the groups that have dead letters")

    show = actions.add_parser("show", help="the dead letters of a group")
    show.add_argument("group")
    show.add_argument("--max", type=int, metavar="N", help="stop after N messages")

    resend = actions.add_parser("resend", help="send dead letters again")
    add = resend.add_argument
    add("group")
    which = resend.add_mutually_exclusive_group(required=True)
    which.add_argument("--id", action="append", help="a message id or offset message id; repeatable")
    which.add_argument("--all", action="store_true", help="all that --all has not sent again before")
    add("--again", action="store_true", help="with --all: begin at the first one")
    to = (
        "original: the topic that the message was sent to, for all its groups (default); retry: the retry"
        " topic, for this group alone; or the name of a topic"
    )
    add("--to", default=ORIGINAL, metavar="WHERE", help=to)
    options.add_rate(resend)
    add("--dry-run", action="store_true", help="list the messages and send nothing")
    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _run(arguments: Namespace) -> int:
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        return await _ACTIONS[arguments.action](client, arguments)


async def _list(client: Client, arguments: Namespace) -> int:
    found = await dead_letters(client.admin, client.groups)
    if arguments.json:
        output.as_json(
            [
                {
                    "group": each.group,
                    "messages": each.messages,
                    "notResent": each.not_resent,
                    "lastTimestamp": each.last_ms,
                }
                for each in found
            ]
        )
        return 0
    rows = [(each.group, each.messages, each.not_resent, shown.time_text(each.last_ms)) for each in found]
    output.table(("GROUP", "MESSAGES", "NOT RESENT", "LAST"), rows)
    return 0


async def _show(client: Client, arguments: Namespace) -> int:
    left = arguments.max
    async with copying.reader(client) as consumer:
        offsets = await _all_of(client, arguments.group)
        async for message in copying.read(consumer, offsets):
            if left == 0:
                break
            left = None if left is None else left - 1
            if arguments.json:
                output.json_line(dead_letter_dict(message))
            else:
                output.line(
                    f"{message.message_id} from {origin_topic(message) or '?'} {shown.message_text(message)}"
                )
                why = reason(message)
                if why is not None:
                    output.line(f"    {why.cause} after {why.attempts} deliveries: {why.error or '-'}")
    return 0


async def _resend(client: Client, arguments: Namespace) -> int:
    """The exit code is 1 when a message failed or an id was not found. `--all` stops at the first failure to
    send, and continues there the next time; it passes over messages that never can be sent."""
    wanted = set(arguments.id or ())
    offsets = await _all_of(client, arguments.group)
    async with client.producer(PRODUCER_GROUP) as producer, copying.reader(client, RESEND_GROUP) as consumer:
        if arguments.all and not arguments.again:
            offsets = await copying.unsent(consumer, offsets)
        total = len(wanted) if wanted else copying.count(offsets)
        sending = copying.Sending(producer, arguments.rate, total)
        keeper = consumer if arguments.all and not arguments.dry_run else None
        group, to = arguments.group, arguments.to
        chosen = (
            copying.Again(message.message_id, message, dead_letter_again(message, group, to))
            async for message in _chosen(consumer, offsets, wanted)
        )
        await copying.resend(chosen, sending, keeper, dry_run=arguments.dry_run)
    for each in sorted(wanted):
        output.error(f"no dead letter of {arguments.group} has the id {each}")
    if arguments.json and not arguments.dry_run:
        output.as_json({"sent": sending.sent, "failed": sending.failed, "missing": sorted(wanted)})
    elif not arguments.dry_run:
        output.line(f"{sending.sent} sent, {sending.failed} failed")
    return 1 if sending.failed or wanted else 0


async def _all_of(client: Client, group: str) -> copying.Span:
    try:
        return await copying.span(client, dlq_topic(group))
    except NoRoute:
        raise ClientError(
            f"group {group!r} has no dead letters; `rmqkit dlq list` lists those that have"
        ) from None


async def _chosen(
    consumer: PullConsumer, offsets: copying.Span, wanted: set[str]
) -> AsyncIterator[ReceivedMessage]:
    """The messages with one of the ids, which are removed from `wanted`; all when there are no ids."""
    every = not wanted
    async for message in copying.read(consumer, offsets):
        ids = {message.message_id, message.offset_message_id} & wanted
        if every or ids:
            wanted -= ids
            yield message
        if not every and not wanted:
            break


_ACTIONS = {"list": _list, "show": _show, "resend": _resend}

DLQ = Verb("dead letters of groups: list, show, resend", _arguments, _run)
