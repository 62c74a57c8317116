"""`rmqkit replay` sends the messages of a topic, or of a span of time, to a topic again."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

import anyio

from rmqkit.cli import copying, options, shown
from rmqkit.cli.send import PRODUCER_GROUP
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.errors import ConfigError
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("topic", help="where the messages are read")
    add("--to", metavar="TOPIC", required=True, help="where they are sent; may be the same topic")
    times = "10m (an age), 2026-05-01T10:00, or ms since 1970"
    add("--since", metavar="TIME", type=shown.moment, default=0, help=f"{times} (default: the first message)")
    add("--until", metavar="TIME", type=shown.moment, default=END_MS, help="stored before it (default: now)")
    options.add_expression(parser)
    add("--max", type=int, metavar="N", help="stop after N messages")
    options.add_rate(parser)
    add("--dry-run", action="store_true", help="count the messages and send nothing")
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    options.check_text(arguments, "topic", "to", "tag", "sql", "filter")
    if arguments.max is not None and arguments.max < 1:
        raise ConfigError("--max must be at least 1")
    return anyio.run(_replay, arguments, backend="trio")


async def _replay(arguments: Namespace) -> int:
    """Messages of one queue keep their order, and those with one ordering key, too. Failed messages are
    reported; the exit code is 1 then. Ends at the end that the topic had at the start."""
    expression, kind = options.expression_of(arguments)
    began_s = time.monotonic()
    found = 0
    async with (
        options.client_of(arguments) as client,
        client.producer(PRODUCER_GROUP) as producer,
        copying.reader(client) as consumer,
    ):
        offsets = await copying.span(client, arguments.topic, arguments.since, arguments.until)
        sending = copying.Sending(producer, arguments.rate, copying.count(offsets))
        try:
            async for message in copying.read(consumer, offsets, expression, kind):
                found += 1
                if not arguments.dry_run:
                    await sending.send(copying.again(message, arguments.to), message)
                if found == arguments.max:
                    break
        finally:
            sending.end()
    if arguments.json:
        counts = {"found": found, "sent": sending.sent, "failed": sending.failed}
        output.as_json({"topic": arguments.topic, "to": arguments.to, "dryRun": arguments.dry_run} | counts)
    elif arguments.dry_run:
        output.line(f"{found} messages of {arguments.topic} would be sent to {arguments.to}")
    else:
        took = shown.span_text(int((time.monotonic() - began_s) * 1000))
        output.line(f"{sending.sent} sent to {arguments.to}, {sending.failed} failed, in {took}")
    return 1 if sending.failed else 0


REPLAY = Verb("send the messages of a topic, or of a time, to a topic again", _arguments, _run)
