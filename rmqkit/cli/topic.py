"""`rmqkit topic list|create|delete|route|stats`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime

import anyio
import msgspec

from rmqkit.cli import options, output
from rmqkit.cli.clients import client_of
from rmqkit.cli.verbs import Verb
from rmqkit.client import Admin
from rmqkit.errors import NoRoute
from rmqkit.model.sysflag import PERM_RW


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="all topics the name servers know")
    listing.add_argument("--all", action="store_true", help="with system, retry and dead-letter topics")

    create = actions.add_parser("create", help="create a topic, or change one")
    create.add_argument("topic")
    create.add_argument("--queues", type=int, default=8, help="queues on each broker (default 8)")
    create.add_argument("--perm", type=int, default=PERM_RW, help="6 read and write, 4 read, 2 write (default 6)")
    create.add_argument("--broker", help="only on this broker")
    create.add_argument("--cluster", help="only on the brokers of this cluster")
    create.add_argument("--order", action="store_true", help="mark it as an ordered topic")

    delete = actions.add_parser("delete", help="delete a topic and its messages")
    delete.add_argument("topic")
    delete.add_argument("--cluster", help="only on the brokers of this cluster")

    for name, text in (("route", "which brokers serve a topic"), ("stats", "first and next offset of every queue")):
        actions.add_parser(name, help=text).add_argument("topic")
    for action in actions.choices.values():
        options.add_client(action)
        options.add_json(action)


def _run(arguments: Namespace) -> int:
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with client_of(arguments) as client:
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
    brokers = await admin.create_topic(
        arguments.topic,
        queues=arguments.queues,
        perm=arguments.perm,
        broker=arguments.broker,
        cluster=arguments.cluster,
        order=arguments.order,
    )
    _report(arguments, "created", brokers)


async def _delete(admin: Admin, arguments: Namespace) -> None:
    if await admin.route(arguments.topic) is None:
        raise NoRoute(arguments.topic, "there is nothing to delete; see `rmqkit topic list`")
    _report(arguments, "deleted", await admin.delete_topic(arguments.topic, cluster=arguments.cluster))


def _report(arguments: Namespace, done: str, brokers: list[str]) -> None:
    if arguments.json:
        output.as_json({"topic": arguments.topic, done: brokers})
    else:
        output.line(f"topic {arguments.topic} {done} on {', '.join(brokers)}")


async def _route(admin: Admin, arguments: Namespace) -> None:
    route = await admin.route(arguments.topic)
    if route is None:
        raise NoRoute(
            arguments.topic,
            f"no broker has it; create it with `rmqkit topic create {arguments.topic}`, or send to it while autoCreateTopicEnable is on",
        )
    if arguments.json:
        output.as_json(msgspec.to_builtins(route, str_keys=True))
        return
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    output.table(
        ("BROKER", "ADDRESSES", "READ QUEUES", "WRITE QUEUES", "PERM"),
        [
            (
                queue.broker_name,
                ", ".join(f"{number}={address}" for number, address in sorted(addresses.get(queue.broker_name, {}).items())),
                queue.read_queue_nums,
                queue.write_queue_nums,
                queue.perm,
            )
            for queue in route.queue_datas
        ],
    )


async def _stats(admin: Admin, arguments: Namespace) -> None:
    stats = await admin.topic_stats(arguments.topic)
    if arguments.json:
        output.as_json(
            [
                {
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "minOffset": found.min_offset,
                    "maxOffset": found.max_offset,
                    "lastUpdateTimestamp": found.last_update_timestamp_ms,
                }
                for queue, found in stats.items()
            ]
        )
        return
    output.table(
        ("BROKER", "QUEUE", "FIRST", "NEXT", "LAST UPDATE"),
        [
            (queue.broker_name, queue.queue_id, found.min_offset, found.max_offset, _time(found.last_update_timestamp_ms))
            for queue, found in stats.items()
        ],
    )


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds") if timestamp_ms else "-"


_ACTIONS = {"list": _list, "create": _create, "delete": _delete, "route": _route, "stats": _stats}

TOPIC = Verb("list, create, delete topics; show their routes and offsets", _arguments, _run)
