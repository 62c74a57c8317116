"""`rmqkit group list|show|lag|set|pause|resume|reset|connections|delete`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

import anyio
import msgspec

from rmqkit.cli import options, shown
from rmqkit.client import Client, GroupConnections, MessageQueue
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.client.cluster.group_views import (
    GroupChange,
    change_group,
    connections_dict,
    delete_group,
    group_lag,
    group_summaries,
    group_view,
    lag_dict,
    move_to_offset,
    move_to_time,
)
from rmqkit.errors import ConfigError
from rmqkit.model.topic import ExponentialRetryPolicy, GroupRetryPolicy
from rmqkit.plugin.command import Verb
from rmqkit.protocol.codes import version_text
from rmqkit.toolkit import output

_FIRST_MS = 0
_SWITCH = ("on", "off")


def _destination(text: str) -> int:
    """An argparse type for `reset --to`: a time in ms."""
    places = {"first": _FIRST_MS, "last": END_MS}
    return places[text] if text in places else shown.moment(text)


def _queue(text: str) -> tuple[str, int]:
    """An argparse type for BROKER:ID."""
    broker, _, queue_id = text.rpartition(":")
    if not broker or not queue_id.isdecimal():
        raise ArgumentTypeError(f"{text!r} does not have the form BROKER:ID, for example broker-a:0")
    return broker, int(queue_id)


def _delays(text: str) -> GroupRetryPolicy:
    """An argparse type for delays."""
    return GroupRetryPolicy.of_delays([shown.span(each) for each in text.split(",")])


def _exponential(text: str) -> GroupRetryPolicy:
    """An argparse type for delays that grow."""
    parts = text.split(":")
    if len(parts) != 3 or not parts[2].isdecimal() or int(parts[2]) < 1:
        raise ArgumentTypeError(f"{text!r} does not have the form FIRST:MOST:FACTOR, for example 5s:2h:2")
    initial, most = map(shown.span, parts[:2])
    policy = ExponentialRetryPolicy(initial=initial, max=most, multiplier=int(parts[2]))
    return GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=policy)


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="all groups with their members and their lag")
    listing.add_argument("--all", action="store_true", help="include the groups of RocketMQ itself")

    for name, text in (
        ("show", "settings, topics, members and lag of a group"),
        ("connections", "the online members of a group and their subscriptions"),
    ):
        actions.add_parser(name, help=text).add_argument("group")

    lag = actions.add_parser("lag", help="how far a group is behind, for each queue and in total")
    lag.add_argument("group")
    lag.add_argument("--topic", help="only this topic (default: all that the group consumes)")
    above = "exit with 1 when more than N messages are not consumed, for monitoring"
    lag.add_argument("--fail-above", type=int, metavar="N", help=above)

    _add_set(actions.add_parser("set", help="change settings of a group, or create it"))

    for name, text in (
        ("pause", "let the members of a group wait, without an error, until it is resumed"),
        ("resume", "end a pause"),
    ):
        actions.add_parser(name, help=text).add_argument("group")

    _add_reset(
        actions.add_parser("reset", help="let a group continue elsewhere, with or without online members")
    )

    delete = actions.add_parser("delete", help="delete a group without members, its offsets and retries")
    delete.add_argument("group")
    delete.add_argument("--dead-letters", action="store_true", help="delete its dead letters, too")
    delete.add_argument("--yes", action="store_true", help="needed: it cannot be undone")

    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _add_set(change: ArgumentParser) -> None:
    add = change.add_argument
    add("group")
    add("--retries", type=int, metavar="N", help="deliveries after the first one, until it is a dead letter")
    policy = change.add_mutually_exclusive_group()
    policy.add_argument(
        "--retry-delays",
        type=_delays,
        metavar="T,T,...",
        help="when a failed message comes again, after each failure: 5s,1m,10m",
    )
    policy.add_argument(
        "--retry-exponential",
        type=_exponential,
        metavar="FIRST:MOST:FACTOR",
        help="the same, growing: 5s:2h:2",
    )
    policy.add_argument("--retry-by-client", action="store_true", help="the same, as the client says")
    for name, text in (
        ("--consume", "whether it may consume"),
        ("--ordered", "whether its 5.x clients get the messages of a queue in order"),
    ):
        add(name, choices=_SWITCH, help=text)
    add(
        "--attribute",
        action="append",
        default=[],
        metavar="CHANGE",
        help="a change of its attributes: +message.model=BROADCASTING sets one, --attribute=-message.model"
        " removes it",
    )


def _add_reset(reset: ArgumentParser) -> None:
    reset.add_argument("group")
    reset.add_argument("topic")
    where = reset.add_mutually_exclusive_group(required=True)
    to = "first, last, a time (2026-05-01T10:00), an age (10m, 2h, 3d), or ms since 1970"
    where.add_argument("--to", metavar="WHERE", type=_destination, help=to)
    where.add_argument("--offset", type=int, help="an offset of one queue")
    reset.add_argument("--queue", metavar="BROKER:ID", type=_queue, help="the queue of --offset")
    reset.add_argument("--dry-run", action="store_true", help="show the offsets and change nothing")


def _run(arguments: Namespace) -> int:
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        return int(await _ACTIONS[arguments.action](client, arguments) or 0)


# Queries.


async def _list(client: Client, arguments: Namespace) -> None:
    found = await group_summaries(client.groups, system=arguments.all)
    if arguments.json:
        output.as_json(
            [
                {
                    "group": each.group,
                    "members": each.members,
                    "messageModel": each.message_model,
                    "topics": each.topics,
                    "lag": each.lag,
                    "brokers": each.brokers,
                }
                for each in found
            ]
        )
        return
    rows = [(each.group, each.members, each.lag, ",".join(each.topics) or "-") for each in found]
    output.table(("GROUP", "MEMBERS", "LAG", "TOPICS"), rows)


async def _show(client: Client, arguments: Namespace) -> None:
    view = await group_view(client.groups, arguments.group)
    if arguments.json:
        output.as_json(
            {
                "group": view.group,
                "settings": msgspec.to_builtins(view.settings or {}),
                "topics": view.lag_by_topic,
                "lag": view.lag,
                **connections_dict(view.online),
            }
        )
        return
    output.line(f"group {view.group}: {view.lag} messages not consumed")
    for broker, config in (view.settings or {}).items():
        settings = (f"{name}={value}" for name, value in msgspec.to_builtins(config).items())
        output.line(f"settings on {broker}: {', '.join(settings)}")
    if view.settings is None:
        output.line("settings: none, no broker has the group")
    output.line()
    output.table(("TOPIC", "LAG"), list(view.lag_by_topic.items()))
    output.line()
    _print_connections(view.online)


async def _lag(client: Client, arguments: Namespace) -> int:
    lag = await group_lag(client.groups, arguments.group, arguments.topic)
    beyond = lag.queues_beyond_end
    if arguments.json:
        output.as_json(lag_dict(lag))
    else:
        rows = [
            (
                queue.topic,
                shown.queue_text(queue),
                each.committed,
                each.end,
                f"{each.beyond} beyond the end" if each.beyond else each.lag,
                each.in_flight,
                each.ready,
                shown.span_text(each.behind_ms),
                shown.time_text(each.last_consumed_ms),
            )
            for queue, each in lag.queues.items()
        ]
        titles = ("COMMITTED", "END", "LAG", "IN FLIGHT", "READY", "BEHIND", "LAST CONSUMED")
        output.table(("TOPIC", "QUEUE", *titles), rows)
        output.line(f"total: {lag.total} messages, {shown.span_text(lag.behind_ms)} behind")
        if beyond:
            output.line(f"the offsets of {beyond} queues are beyond the end: consumers go on at the end")
    return 1 if arguments.fail_above is not None and (lag.total > arguments.fail_above or beyond) else 0


async def _connections(client: Client, arguments: Namespace) -> None:
    online = await client.groups.connections(arguments.group)
    if arguments.json:
        output.as_json({"group": arguments.group} | connections_dict(online))
        return
    _print_connections(online)


def _print_connections(online: GroupConnections | None) -> None:
    if online is None:
        output.line("no members are online")
        return
    rows = [
        (each.client_id, each.address, each.language, version_text(each.version), ",".join(each.brokers))
        for each in online.members
    ]
    output.table(("CLIENT", "ADDRESS", "LANGUAGE", "VERSION", "BROKERS"), rows)
    output.line()
    output.line(f"{online.message_model}, {online.consume_type}, {online.consume_from_where}")
    subscribed = [
        (topic, each.expression_type, each.sub_string) for topic, each in online.subscriptions.items()
    ]
    output.table(("SUBSCRIPTION", "TYPE", "EXPRESSION"), subscribed)


# Changes.


async def _set(client: Client, arguments: Namespace) -> None:
    retry = arguments.retry_delays or arguments.retry_exponential
    change = await change_group(
        client.groups,
        arguments.group,
        retries=arguments.retries,
        retry=None if arguments.retry_by_client else retry or msgspec.UNSET,
        consumes=_is_on(arguments.consume),
        ordered=_is_on(arguments.ordered),
        attributes=",".join(arguments.attribute) or None,
    )
    _report(change, as_json=arguments.json)


async def _pause(client: Client, arguments: Namespace) -> None:
    paused = arguments.action == "pause"
    _report(await change_group(client.groups, arguments.group, paused=paused), as_json=arguments.json)


def _report(change: GroupChange, *, as_json: bool) -> None:
    done = {what: getattr(change, what) for what in ("created", "updated", "unchanged")}
    done = {what: brokers for what, brokers in done.items() if brokers}
    if as_json:
        output.as_json({"group": change.group} | done)
        return
    for what, brokers in done.items():
        output.line(f"group {change.group} {what} on {', '.join(brokers)}")


def _is_on(text: str | None) -> bool | None:
    return None if text is None else text == "on"


async def _reset(client: Client, arguments: Namespace) -> None:
    group, topic = arguments.group, arguments.topic
    if (arguments.offset is None) != (arguments.queue is None):
        raise ConfigError("--offset and --queue belong together: --offset 120 --queue broker-a:0")
    if arguments.offset is not None:
        queue = MessageQueue(topic, *arguments.queue)
        moves = await move_to_offset(client.groups, group, queue, arguments.offset, dry_run=arguments.dry_run)
    else:
        moves = await move_to_time(client.groups, group, topic, arguments.to, dry_run=arguments.dry_run)
    if arguments.json:
        output.as_json(
            {
                "group": group,
                "changed": not arguments.dry_run,
                "queues": [
                    shown.queue_dict(each.queue) | {"before": each.before, "after": each.after}
                    for each in moves
                ],
            }
        )
        return
    cells = [
        (
            each.queue.topic,
            shown.queue_text(each.queue),
            "-" if each.before is None else each.before,
            each.after,
        )
        for each in moves
    ]
    output.table(("TOPIC", "QUEUE", "BEFORE", "AFTER"), cells)
    if arguments.dry_run:
        output.line("nothing was changed")


async def _delete(client: Client, arguments: Namespace) -> None:
    group = arguments.group
    if not arguments.yes:
        raise ConfigError(f"deleting group {group} cannot be undone; say so with --yes")
    done = await delete_group(client.admin, client.groups, group, dead_letters=arguments.dead_letters)
    if arguments.json:
        output.as_json({"group": group, "brokers": done.brokers, "deletedTopics": done.topics})
        return
    output.line(f"group {group} deleted on {', '.join(done.brokers)}")
    for topic in done.topics:
        output.line(f"topic {topic} deleted")


_ACTIONS = {
    "list": _list,
    "show": _show,
    "lag": _lag,
    "set": _set,
    "pause": _pause,
    "resume": _pause,
    "reset": _reset,
    "connections": _connections,
    "delete": _delete,
}

GROUP = Verb("consumer groups: list, show, lag, set, reset, connections, delete", _arguments, _run)
