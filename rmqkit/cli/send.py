"""`rmqkit send`: one message, lines of text, or messages as JSON lines."""

from __future__ import annotations

import base64
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import msgspec

from rmqkit import Message
from rmqkit.cli import options
from rmqkit.cli.copying import Pace
from rmqkit.cli.window import Outcome, SendWindow
from rmqkit.client import Producer, SendResult
from rmqkit.errors import ConfigError
from rmqkit.model import properties as props
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output
from rmqkit.toolkit.options import add_pairs

#: Bytes per read of the input.
_READ_BYTES = 65_536
PRODUCER_GROUP = "rmqkit_cli_producer"
#: Of a send of the client, where nothing else is said.
_TIMEOUT_S = 3.0
_MAX_IN_FLIGHT = 10_000


class _Line(msgspec.Struct, rename="camel", kw_only=True):
    """A message as a JSON line. What `consume --json` and `store export` print fits, too; the members that
    belong to its first sending are ignored."""

    body: str | None = None
    body_base64: str | None = None
    body_hex: str | None = None
    tag: str | None = None
    keys: list[str] | str | None = None
    properties: dict[str, str] = {}
    ordering_key: str | None = None
    delay_level: int | None = None
    flag: int = 0
    fault: str | None = None

    def content(self) -> bytes:
        """The body. Raises ValueError."""
        if self.fault is not None:
            raise ValueError(f"the message could not be decoded: {self.fault}")
        if [self.body, self.body_base64, self.body_hex].count(None) != 2:
            raise ValueError("it needs one of body, bodyBase64 and bodyHex")
        if self.body is not None:
            return self.body.encode()
        if self.body_hex is not None:
            return bytes.fromhex(self.body_hex)
        return base64.b64decode(self.body_base64 or "", validate=True)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic")
    body = "the message (default: every line of standard input is sent as a message)"
    parser.add_argument("body", nargs="?", help=body)
    parser.add_argument("--file", metavar="FILE", help="read the lines from a file instead")
    lines = (
        "each line is a JSON object: body, bodyBase64 or bodyHex; tag, keys, properties, orderingKey,"
        " delayLevel, flag; the options below apply where a line does not say otherwise"
    )
    parser.add_argument("--json-lines", action="store_true", help=lines)
    start = "skip the lines before line N, to continue an interrupted run"
    parser.add_argument("--from-line", type=int, default=1, metavar="N", help=start)
    on = "report a line that cannot be sent and go on; the exit code is 1 then"
    parser.add_argument("--keep-going", action="store_true", help=on)
    parser.add_argument("--quiet", action="store_true", help="print the counts at the end only")
    flight = (
        "send up to N lines at once (default 1: a line is sent when the one before is stored); lines with the"
        " same ordering key still follow each other"
    )
    parser.add_argument("--in-flight", type=int, default=1, metavar="N", help=flight)
    options.add_rate(parser)
    timeout = (
        "time for each message, in which it is sent again to a broker that takes it; longer than an election"
        f" where masters are elected (default {_TIMEOUT_S:g})"
    )
    parser.add_argument("--timeout", type=options.positive, default=_TIMEOUT_S, metavar="S", help=timeout)
    parser.add_argument("--tag", help="tag that consumers can filter by")
    parser.add_argument("--key", action="append", default=[], help="key for message queries; repeatable")
    add_pairs(parser, "--property", "repeatable")
    parser.add_argument("--ordering-key", help="messages with the same key go to one queue, in order")
    parser.add_argument("--delay-level", type=int, help="1 to 18: 1s 5s 10s 30s 1m ... 2h")
    parser.add_argument("--group", default=PRODUCER_GROUP, help=f"producer group (default {PRODUCER_GROUP})")
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    options.check_text(arguments, "topic", "tag", "key", "property", "ordering_key", "group")
    if arguments.body is not None and (arguments.file or arguments.json_lines):
        raise ConfigError("a text and --file or --json-lines exclude each other")
    if arguments.from_line < 1:
        raise ConfigError("--from-line must be at least 1")
    if not 1 <= arguments.in_flight <= _MAX_IN_FLIGHT:
        raise ConfigError(f"--in-flight must be 1 to {_MAX_IN_FLIGHT}")
    return anyio.run(_send_all, arguments, backend="trio")


async def _send_all(arguments: Namespace) -> int:
    """Send the messages. When cancelled, every printed message was sent, and possibly others that were in
    flight."""
    timeout_ms = int(arguments.timeout * 1000)
    if arguments.body is not None:
        async with (
            options.client_of(arguments) as client,
            client.producer(arguments.group, timeout_ms=timeout_ms) as producer,
        ):
            message = _text_message(arguments, os.fsencode(arguments.body))
            _show_sent(await producer.send(message), arguments.json)
        return 0
    source = _Input(arguments.file)
    try:
        async with (
            options.client_of(arguments) as client,
            client.producer(arguments.group, timeout_ms=timeout_ms) as producer,
        ):
            return await _Lines(arguments, source).send(producer)
    finally:
        source.close()


class _Lines:
    """Sends the lines of an input, prints what became of them, and counts.

    first_unsent  number of the first line that was not sent, None while there is none
    sent_behind   how many lines behind it were sent
    """

    def __init__(self, arguments: Namespace, source: _Input) -> None:
        self.sent = self.failed = self.number = self.sent_behind = 0
        self.first_unsent: int | None = None
        self._arguments = arguments
        self._source = source
        self._bar = output.ProgressBar("B" if source.size_bytes else " messages")

    async def send(self, producer: Producer) -> int:
        """Returns the exit code. Raises ConfigError when there is no line, and errors of the input."""
        arguments, pace = self._arguments, Pace(self._arguments.rate)
        window = SendWindow(producer, arguments.in_flight, self._report, keep_going=arguments.keep_going)
        try:
            async with anyio.create_task_group() as tasks:
                async for line in self._source.lines():
                    self.number += 1
                    blank = not (line.strip() if arguments.json_lines else line)
                    if self.number < arguments.from_line or blank:
                        continue
                    await pace.turn()
                    await window.send(tasks, self.number, self._parsed(line))
                    if window.stopped:
                        break
        finally:
            self._bar.end()
        if not self.sent and not self.failed:
            raise ConfigError("there is nothing to send: pass a text, or lines on standard input")
        if arguments.quiet:
            _show_counts(self.sent, self.failed, self.number, arguments.json)
        if self.first_unsent is not None and not arguments.keep_going:
            behind = f", which sends {self.sent_behind} lines again" if self.sent_behind else ""
            output.error(f"{self.sent} sent; continue with --from-line {self.first_unsent}{behind}")
        return 1 if self.failed else 0

    def _parsed(self, line: bytes) -> Message | Exception:
        try:
            return _message(self._arguments, line)
        except (ValueError, TypeError) as error:
            return error

    def _report(self, number: int, outcome: Outcome) -> None:
        if isinstance(outcome, SendResult):
            self.sent += 1
            self.sent_behind += self.first_unsent is not None
            if not self._arguments.quiet:
                _show_sent(outcome, self._arguments.json)
        else:
            self.first_unsent = number if self.first_unsent is None else self.first_unsent
            if outcome is not None:
                self.failed += 1
                output.error(f"line {number}: {outcome}")
        size_bytes = self._source.size_bytes
        self._bar(self._source.read_bytes if size_bytes else self.sent + self.failed, size_bytes)


def _show_counts(sent: int, failed: int, number: int, json: bool) -> None:
    if json:
        output.as_json({"sent": sent, "failed": failed, "lines": number})
    else:
        output.line(f"{sent} sent, {failed} failed, {number} lines")


def _message(arguments: Namespace, line: bytes) -> Message:
    """The message that a line of the input describes. Raises ValueError and TypeError when the line does not
    describe a message."""
    if not arguments.json_lines:
        return _text_message(arguments, line)
    given = msgspec.json.decode(line, type=_Line)
    own = {name: value for name, value in given.properties.items() if name not in props.OF_ONE_SENDING}
    tag, stored_tag = given.tag or arguments.tag, given.properties.get(props.TAGS)
    keys = props.split_keys(given.keys) if isinstance(given.keys, str) else given.keys
    stored_keys = given.properties.get(props.KEYS)
    # What a broker has accepted must not fail at the rules for applications.
    if given.tag and given.tag == stored_tag:
        own[props.TAGS], tag = stored_tag, None
    if stored_keys and keys is not None and tuple(keys) == props.split_keys(stored_keys):
        own[props.KEYS], keys = stored_keys, ()
    return Message(
        arguments.topic,
        given.content(),
        tag=tag,
        keys=arguments.key if keys is None else keys,
        properties=dict(arguments.property) | own,
        ordering_key=given.ordering_key or given.properties.get(props.SHARDING_KEY) or arguments.ordering_key,
        delay_level=given.delay_level or arguments.delay_level,
        flag=given.flag,
    )


def _text_message(arguments: Namespace, body: bytes) -> Message:
    return Message(
        arguments.topic,
        body,
        tag=arguments.tag,
        keys=arguments.key,
        properties=dict(arguments.property),
        ordering_key=arguments.ordering_key,
        delay_level=arguments.delay_level,
    )


class _Input:
    """Standard input, or a file. Raises ConfigError when the file cannot be opened.

    size_bytes  the size of the file, None for standard input
    read_bytes  how much has been read
    """

    def __init__(self, path: str | None) -> None:
        self.size_bytes: int | None = None
        self.read_bytes = 0
        self._own = path is not None
        if path is None:
            # Not read through sys.stdin: an abandoned thread would keep its lock, and Python could not exit.
            self._descriptor = sys.stdin.fileno()
            return
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"--file: {error}") from error
        self.size_bytes = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the file."""
        if self._own:
            os.close(self._descriptor)

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines without their line ends, each as soon as it is complete; the last line may lack its end."""
        started: list[bytes] = []
        while True:
            data = await anyio.to_thread.run_sync(
                os.read, self._descriptor, _READ_BYTES, abandon_on_cancel=not self._own
            )
            if not data:
                break
            self.read_bytes += len(data)
            *lines, rest = data.split(b"\n")
            for line in lines:
                yield b"".join((*started, line))
                started.clear()
            started.append(rest)
        if any(started):
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
                **({} if result.recall_handle is None else {"recallHandle": result.recall_handle}),
            }
        )
    else:
        handle = "" if result.recall_handle is None else f" recall handle {result.recall_handle}"
        where = f"{result.queue} offset {result.queue_offset}"
        output.line(f"{result.status.name} {result.message_id} {where}{handle}")


SEND = Verb("send a message, or lines of text or JSON", _arguments, _run)
