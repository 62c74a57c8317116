"""`rmqkit group list|show|lag|reset|connections|delete`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import Any

import anyio
import attrs
import msgspec

from rmqkit.cli import options, shown
from rmqkit.cli.side_by_side import side_by_side
from rmqkit.client import Client, GroupConnections, MessageQueue, Progress
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.errors import ClientError, ConfigError, NoRoute
from rmqkit.model.names import PRESET_GROUPS, dlq_topic, is_system_group, retry_topic
from rmqkit.plugin.command import Verb
from rmqkit.protocol.codes import version_text
from rmqkit.toolkit import output

_FIRST_MS = 0


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

    reset = actions.add_parser("reset", help="let a group continue elsewhere, with or without online members")
    reset.add_argument("group")
    reset.add_argument("topic")
    where = reset.add_mutually_exclusive_group(required=True)
    to = "first, last, a time (2026-05-01T10:00), an age (10m, 2h, 3d), or ms since 1970"
    where.add_argument("--to", metavar="WHERE", type=_destination, help=to)
    where.add_argument("--offset", type=int, help="an offset of one queue")
    reset.add_argument("--queue", metavar="BROKER:ID", type=_queue, help="the queue of --offset")
    reset.add_argument("--dry-run", action="store_true", help="show the offsets and change nothing")

    delete = actions.add_parser("delete", help="delete a group without members, its offsets and retries")
    delete.add_argument("group")
    delete.add_argument("--dead-letters", action="store_true", help="delete its dead letters, too")
    delete.add_argument("--yes", action="store_true", help="needed: it cannot be undone")

    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _run(arguments: Namespace) -> int:
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        return int(await _ACTIONS[arguments.action](client, arguments) or 0)


# Queries.


async def _list(client: Client, arguments: Namespace) -> None:
    known = {
        group: list(configs)
        for group, configs in (await client.groups.configs()).items()
        if arguments.all or not (is_system_group(group) or group in PRESET_GROUPS)
    }

    async def asked(group: str) -> dict[str, Any]:
        progress, online = await client.groups.progress(group), await client.groups.connections(group)
        return {
            "group": group,
            "members": len(online.members) if online else 0,
            "messageModel": online.message_model if online else None,
            "topics": sorted({queue.topic for queue in progress}),
            "lag": _total(progress),
            "brokers": known[group],
        }

    found = await side_by_side(asked, known)
    if arguments.json:
        output.as_json(found)
        return
    rows = [(each["group"], each["members"], each["lag"], ",".join(each["topics"]) or "-") for each in found]
    output.table(("GROUP", "MEMBERS", "LAG", "TOPICS"), rows)


async def _show(client: Client, arguments: Namespace) -> None:
    group = arguments.group
    configs = (await client.groups.configs()).get(group)
    progress, online = await client.groups.progress(group), await client.groups.connections(group)
    if configs is None and online is None and not progress:
        raise _unknown(group)
    topics = _by_topic(progress)
    if arguments.json:
        output.as_json(
            {
                "group": group,
                "settings": msgspec.to_builtins(configs or {}),
                "topics": topics,
                "lag": _total(progress),
                **_connections_dict(online),
            }
        )
        return
    output.line(f"group {group}: {_total(progress)} messages not consumed")
    for broker, config in (configs or {}).items():
        settings = (f"{name}={value}" for name, value in msgspec.to_builtins(config).items())
        output.line(f"settings on {broker}: {', '.join(settings)}")
    if configs is None:
        output.line("settings: none, no broker has the group")
    output.line()
    output.table(("TOPIC", "LAG"), list(topics.items()))
    output.line()
    _print_connections(online)


async def _lag(client: Client, arguments: Namespace) -> int:
    progress = await _measured(client, arguments.group, arguments.topic)
    if not progress:
        raise ClientError(
            f"group {arguments.group!r} has no offsets"
            + (f" in topic {arguments.topic!r}" if arguments.topic else "")
            + "; `rmqkit group list` lists the groups"
        )
    total, beyond = _total(progress), sum(each.beyond > 0 for each in progress.values())
    oldest_ms = max((each.behind_ms or 0 for each in progress.values()), default=0)
    if arguments.json:
        output.as_json(
            {
                "group": arguments.group,
                "lag": total,
                "queuesBeyondEnd": beyond,
                "behindMs": oldest_ms,
                "queues": [
                    shown.queue_dict(queue)
                    | {
                        "committed": each.committed,
                        "pulled": each.pulled,
                        "end": each.end,
                        "lag": each.lag,
                        "beyondEnd": each.beyond,
                        "behindMs": each.behind_ms,
                        "lastConsumedTimestamp": each.last_consumed_ms,
                    }
                    for queue, each in progress.items()
                ],
            }
        )
    else:
        rows = [
            (
                queue.topic,
                shown.queue_text(queue),
                each.committed,
                each.end,
                f"{each.beyond} beyond the end" if each.beyond else each.lag,
                shown.span_text(each.behind_ms),
                shown.time_text(each.last_consumed_ms),
            )
            for queue, each in progress.items()
        ]
        output.table(("TOPIC", "QUEUE", "COMMITTED", "END", "LAG", "BEHIND", "LAST CONSUMED"), rows)
        output.line(f"total: {total} messages, {shown.span_text(oldest_ms)} behind")
        if beyond:
            output.line(f"the offsets of {beyond} queues are beyond the end: consumers go on at the end")
    return 1 if arguments.fail_above is not None and (total > arguments.fail_above or beyond) else 0


async def _measured(client: Client, group: str, topic: str | None) -> dict[MessageQueue, Progress]:
    """The progress with `behind_ms`."""
    progress = await client.groups.progress(group, topic)
    behind: dict[MessageQueue, int] = {}
    for name in sorted({queue.topic for queue in progress}):
        try:
            behind |= await client.groups.behind(group, name)
        except NoRoute:
            # Deleted on the name servers, but not on every broker.
            continue
    return {queue: attrs.evolve(each, behind_ms=behind.get(queue)) for queue, each in progress.items()}


async def _connections(client: Client, arguments: Namespace) -> None:
    online = await client.groups.connections(arguments.group)
    if arguments.json:
        output.as_json({"group": arguments.group} | _connections_dict(online))
        return
    _print_connections(online)


def _connections_dict(online: GroupConnections | None) -> dict[str, Any]:
    if online is None:
        return {"members": [], "subscriptions": {}}
    return {
        "consumeType": online.consume_type,
        "messageModel": online.message_model,
        "consumeFromWhere": online.consume_from_where,
        "members": [
            {
                "clientId": each.client_id,
                "address": each.address,
                "language": each.language,
                "version": each.version,
                "versionName": version_text(each.version),
                "brokers": list(each.brokers),
            }
            for each in online.members
        ],
        "subscriptions": {
            topic: {"expression": each.sub_string, "type": each.expression_type or "TAG"}
            for topic, each in online.subscriptions.items()
        },
    }


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


async def _reset(client: Client, arguments: Namespace) -> None:
    group, topic = arguments.group, arguments.topic
    if (arguments.offset is None) != (arguments.queue is None):
        raise ConfigError("--offset and --queue belong together: --offset 120 --queue broker-a:0")
    before = await client.groups.progress(group, topic)
    if arguments.offset is not None:
        queue = MessageQueue(topic, *arguments.queue)
        if not arguments.dry_run:
            await client.groups.reset_to_offset(group, queue, arguments.offset)
        after = {queue: arguments.offset}
    elif arguments.dry_run:
        after = await client.groups.offsets_at(topic, arguments.to)
    else:
        after = await client.groups.reset_to_time(group, topic, arguments.to)
    rows = [(queue, before[queue].committed if queue in before else None, at) for queue, at in after.items()]
    if arguments.json:
        output.as_json(
            {
                "group": group,
                "changed": not arguments.dry_run,
                "queues": [shown.queue_dict(queue) | {"before": was, "after": at} for queue, was, at in rows],
            }
        )
        return
    cells = [
        (queue.topic, shown.queue_text(queue), "-" if was is None else was, at) for queue, was, at in rows
    ]
    output.table(("TOPIC", "QUEUE", "BEFORE", "AFTER"), cells)
    if arguments.dry_run:
        output.line("nothing was changed")


async def _delete(client: Client, arguments: Namespace) -> None:
    group = arguments.group
    if not arguments.yes:
        raise ConfigError(f"deleting group {group} cannot be undone; say so with --yes")
    online = await client.groups.connections(group)
    if online is not None:
        members = ", ".join(each.client_id for each in online.members)
        raise ClientError(f"group {group!r} has online members, which would create it again: {members}")
    if group not in await client.groups.configs() and not await client.groups.progress(group):
        raise _unknown(group)
    brokers = await client.groups.delete(group)
    topics = set(await client.admin.topics())
    wanted = [retry_topic(group), *([dlq_topic(group)] if arguments.dead_letters else [])]
    deleted = [topic for topic in wanted if topic in topics]
    for topic in deleted:
        await client.admin.delete_topic(topic)
    if arguments.json:
        output.as_json({"group": group, "brokers": brokers, "deletedTopics": deleted})
        return
    output.line(f"group {group} deleted on {', '.join(brokers)}")
    for topic in deleted:
        output.line(f"topic {topic} deleted")


def _unknown(group: str) -> ClientError:
    return ClientError(f"no broker knows group {group!r}; `rmqkit group list` lists the groups")


def _total(progress: Mapping[MessageQueue, Progress]) -> int:
    return sum(each.lag for each in progress.values())


def _by_topic(progress: Mapping[MessageQueue, Progress]) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue, each in progress.items():
        found[queue.topic] = found.get(queue.topic, 0) + each.lag
    return found


_ACTIONS = {
    "list": _list,
    "show": _show,
    "lag": _lag,
    "reset": _reset,
    "connections": _connections,
    "delete": _delete,
}

GROUP = Verb("consumer groups: list, show, lag, reset, connections, delete", _arguments, _run)
