"""`rmqkit topic list|create|show|delete|route|stats`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import anyio
import msgspec

from rmqkit.cli import options, shown
from rmqkit.client import Admin
from rmqkit.client.cluster.topic_views import (
    TopicChange,
    delete_topic,
    put_topic,
    topic_route,
    topic_settings,
)
from rmqkit.model.message_type import TopicMessageType, declared_type
from rmqkit.model.sysflag import PERM_RW
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

#: What a topic may be for.
_TYPES = [kind.value for kind in TopicMessageType if kind is not TopicMessageType.UNSPECIFIED]


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="all topics known to the name servers")
    listing.add_argument("--all", action="store_true", help="include system, retry and dead-letter topics")

    create = actions.add_parser("create", help="create a topic, or change one")
    add = create.add_argument
    add("topic")
    add("--queues", type=int, default=8, help="queues on each broker (default 8)")
    add("--perm", type=int, default=PERM_RW, help="6 read and write, 4 read, 2 write (default 6)")
    add("--broker", help="only on this broker")
    add("--cluster", help="only on the brokers of this cluster")
    add("--order", action="store_true", help="mark it as an ordered topic")
    add(
        "--type",
        type=str.upper,
        choices=_TYPES,
        help="what its messages are; a broker with enableTopicMessageTypeCheck refuses others (default: all)",
    )
    add(
        "--attribute",
        action="append",
        default=[],
        metavar="CHANGE",
        help="a change of its attributes: +dedup.window=10m sets one, --attribute=-dedup.window removes it",
    )

    delete = actions.add_parser("delete", help="delete a topic and its messages")
    delete.add_argument("topic")
    delete.add_argument("--cluster", help="only on the brokers of this cluster")

    for name, text in (
        ("show", "its settings on every broker, among them the type of its messages"),
        ("route", "which brokers serve a topic"),
        ("stats", "first and next offset of every queue"),
    ):
        actions.add_parser(name, help=text).add_argument("topic")
    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _run(arguments: Namespace) -> int:
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        await _ACTIONS[arguments.action](client.admin, arguments)
    return 0


async def _list(admin: Admin, arguments: Namespace) -> None:
    topics = await (admin.topics() if arguments.all else admin.application_topics())
    if arguments.json:
        output.as_json(topics)
    else:
        for topic in topics:
            output.line(topic)


async def _create(admin: Admin, arguments: Namespace) -> None:
    given = {name: getattr(arguments, name) for name in ("queues", "perm", "broker", "cluster", "order")}
    attributes = ",".join(arguments.attribute) or None
    kind = arguments.type
    change = await put_topic(admin, arguments.topic, message_type=kind, attributes=attributes, **given)
    _report(arguments, change)


async def _delete(admin: Admin, arguments: Namespace) -> None:
    _report(arguments, await delete_topic(admin, arguments.topic, cluster=arguments.cluster))


def _report(arguments: Namespace, change: TopicChange) -> None:
    """Print what was done, and the names of the brokers."""
    given = {what: getattr(change, what) for what in ("created", "updated", "unchanged", "deleted")}
    done = {what: brokers for what, brokers in given.items() if brokers}
    if arguments.json:
        output.as_json({"topic": change.topic} | done)
        return
    for what, brokers in done.items():
        output.line(f"topic {change.topic} {what} on {', '.join(brokers)}")


async def _show(admin: Admin, arguments: Namespace) -> None:
    settings = await topic_settings(admin, arguments.topic)
    if arguments.json:
        described = [
            {"brokerName": broker, "messageType": declared_type(config.attributes).value}
            | msgspec.to_builtins(config)
            for broker, config in settings.items()
        ]
        output.as_json(described)
        return
    rows = [
        (
            broker,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            "yes" if config.order else "no",
            declared_type(config.attributes),
            ", ".join(f"{key}={value}" for key, value in sorted(config.attributes.items())) or "-",
        )
        for broker, config in settings.items()
    ]
    output.table(("BROKER", "READ QUEUES", "WRITE QUEUES", "PERM", "ORDER", "TYPE", "ATTRIBUTES"), rows)


async def _route(admin: Admin, arguments: Namespace) -> None:
    route = await topic_route(admin, arguments.topic)
    if arguments.json:
        output.as_json(msgspec.to_builtins(route, str_keys=True))
        return
    addresses = {
        broker.broker_name: ", ".join(f"{number}={at}" for number, at in sorted(broker.broker_addrs.items()))
        for broker in route.broker_datas
    }
    rows = [
        (q.broker_name, addresses.get(q.broker_name, ""), q.read_queue_nums, q.write_queue_nums, q.perm)
        for q in route.queue_datas
    ]
    output.table(("BROKER", "ADDRESSES", "READ QUEUES", "WRITE QUEUES", "PERM"), rows)


async def _stats(admin: Admin, arguments: Namespace) -> None:
    stats = await admin.topic_stats(arguments.topic)
    rows = [
        (queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, at.last_update_timestamp_ms)
        for queue, at in stats.items()
    ]
    if arguments.json:
        members = ("brokerName", "queueId", "minOffset", "maxOffset", "lastUpdateTimestamp")
        output.as_json([dict(zip(members, row, strict=True)) for row in rows])
        return
    table = [(*row, shown.time_text(last_ms)) for *row, last_ms in rows]
    output.table(("BROKER", "QUEUE", "FIRST", "NEXT", "LAST UPDATE"), table)


_ACTIONS = {
    "list": _list,
    "create": _create,
    "show": _show,
    "delete": _delete,
    "route": _route,
    "stats": _stats,
}

TOPIC = Verb("list, create, delete topics; show their settings, routes and offsets", _arguments, _run)
