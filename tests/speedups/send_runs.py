"""Runs of sends, collected, packed and answered by the compiled run and by the run of values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from attrs import define

from rmqkit.broker.processors import send_answers
from rmqkit.broker.processors.send_answers import Form, SuccessForm
from rmqkit.broker.processors.send_columns import PlainSend, PlainSends, PutList, born_bits, collector, listed
from rmqkit.broker.processors.success_form import ValueForm
from rmqkit.config import Config
from rmqkit.errors import DecodeError
from rmqkit.model import names, values
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import Looks, looks
from rmqkit.plugin.hooks import SendingBroker, SendRun
from rmqkit.plugin.request import Answer
from rmqkit.protocol import batch
from rmqkit.protocol.command import Command
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.protocol.packed import NewPacker, TopicHead, next_place_in_files
from rmqkit.protocol.record_packer import RecordPacker
from rmqkit.protocol.tags import tags_code
from rmqkit.protocol.value_packer import ValuePacker
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_audit import hooks as audit_hooks
from rmqkit_hook_audit import value_lines
from rmqkit_hook_audit.lines import Lines, lines
from rmqkit_hook_audit.recorder import Queue as EventQueue
from rmqkit_hook_audit.recorder import Recorder
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_store_mmap.index.entries import ListedEntries, new_entries

#: One request of a run with its header and the index of its connection in HOSTS.
Send = tuple[Command, SendMessageRequestHeaderV2, int]

HOST = bytes(range(8))
HOSTS = ("127.0.0.1", "10.0.0.7", "2001:db8::7")
#: Longer than the name of a new topic may be.
LONG = "C" * 130
TOPICS = {"A": 4, "B": 2, LONG: 1}
HOW = PlainSend(
    frozenset({"DELAY", "TRAN_MSG", "POP_CK"}), "MSG_REGION\x01R\x02", 0, ~(1 << 4 | 1 << 5 | 12), 400
)
FILE_BYTES = 2_000


@define
class Kind:
    """One implementation of everything that a run of sends goes through."""

    collect: Callable[[], PlainSends]
    packer: NewPacker
    looks: Looks
    form: Callable[[str, Sequence[bytes]], Form]
    lines: Lines
    entries: Callable[[], Any]


PURE = Kind(listed(HOW), ValuePacker, values, ValueForm, value_lines, ListedEntries)
#: The one that runs.
COMPILED = Kind(collector(HOW), RecordPacker, looks, SuccessForm, lines, new_entries)
#: Values where the others take columns, as from services that build their messages.
MIXED = Kind(listed(HOW), RecordPacker, looks, SuccessForm, lines, new_entries)


@define(eq=False)
class Queue:
    head: TopicHead
    next_offset: int = 7
    reserved_until: int = 9

    def reserve(self, stop: int) -> None:
        self.reserved_until = stop + 1


def built(messages: Any, sends: SendRun, changed: int) -> None:
    """Collect the sends as the processor does: what is not taken is built here, or left out."""
    at = messages.take(sends, 0, TOPICS)
    while at < len(sends):
        request, header = sends.requests[at], sends.headers[at]
        one = sends.select([at])
        plain, host = PutList(HOW), sends.peers[at].remote_host
        if plain.take(one, 0, TOPICS):
            messages.add(plain, sends.properties[at].get(props.UNIQ_KEY))
        elif not header.batch or not messages.take_batch("A", 1, header, request.body, host, born_bits(host)):
            if header.batch:
                messages.add(plain_batch(request, header, host), sends.properties[at].get(props.UNIQ_KEY))
            elif request.body and len(request.body) % 3:
                message = PutMessage("B", 1, request.body, {"KEYS": "q"}, b"KEYS\x01q\x02", born_host=HOST)
                messages.add([message], None)
            else:
                messages.leave_out()
        at = messages.take(sends, at + 1, TOPICS)
    if changed < len(messages):
        parked = messages[changed]
        parked.topic = names.TIMER_TOPIC
        parked.set_properties(parked.properties | {props.REAL_TOPIC: "Z", props.TIMER_OUT_MS: "1000"})
        parked.topic = "Z"
        if changed % 2:
            parked.topic = names.SCHEDULE_TOPIC
            parked.set_properties(parked.properties | {props.REAL_QUEUE_ID: "5"})


def plain_batch(request: Command, header: SendMessageRequestHeaderV2, born_host: bytes) -> list[PutMessage]:
    """The messages of a batch by the pure codec, none of one that is damaged."""
    try:
        return [
            PutMessage(
                "A",
                1,
                body,
                props.decode_bytes(text),
                text,
                flag,
                header.sys_flag & HOW.client_bits | born_bits(born_host),
                header.born_timestamp,
                born_host,
                header.reconsume_times or 0,
                0,
                tags_code(props.decode_bytes(text).get("TAGS")),
                props.decode(header.properties or "").get("WAIT") != props.NO_WAIT,
            )
            for flag, body, text in batch.decode(request.body)
        ]
    except DecodeError:
        return []


def outcome(kind: Kind, given_sends: Sequence[Send], changed: int) -> tuple[object, ...]:
    """Everything that a run leads to."""
    connections = [FakePeer(host) for host in HOSTS]
    requests, headers = [each[0] for each in given_sends], [each[1] for each in given_sends]
    peers = [connections[each[2]] for each in given_sends]
    sends = SendRun(SendingBroker("", "", b""), 0, requests, peers, headers)
    messages: Any = kind.collect()
    built(messages, sends, changed)
    sizes = messages.sizes
    made: dict[tuple[str, int], Queue] = {}
    queues = {("A", 1): Queue(TopicHead.of("A"), 3, 4), (LONG, 0): Queue(TopicHead.of(LONG))}
    codes = {"B": lambda properties, time_ms: time_ms + len(properties)}
    elsewhere = next_place_in_files(FILE_BYTES)
    run: Any = kind.packer(500, HOST, (LONG,)).pack(
        messages, 7_000, queues, lambda topic, number, count: Queue(TopicHead.of(topic)), *elsewhere(0, 0),
        elsewhere, made, codes,
    )  # fmt: skip
    sends.messages, sends.results, sends.sizes, sends.code = messages, run.results, sizes, 0
    places = {id(queue): key for key, queue in {**queues, **made}.items()}
    units = {places[id(queue)]: own for queue, own in run.units.items() if own}
    seen = looked_at(kind.looks, messages, run.results)
    answers = []
    if sizes is None or 0 not in sizes:
        with mock.patch.object(send_answers, "SuccessForm", kind.form):
            answers = [shown(answer) for answer in send_answers.SendAnswers(Config(), HOST).of(sends)]
    with mock.patch.object(audit_hooks, "lines", kind.lines):
        events = audited(sends)
    entries = kind.entries()
    entries.add_notes(run.notes)
    noted = [*run.notes], [entries[at] for at in range(len(entries))]
    return run.end, run.records(), [*run.results], units, noted, sizes, seen, events, [*messages], answers


def looked_at(looks: Looks, messages: Any, results: Any) -> tuple[object, ...]:
    """What is asked of a whole run."""
    of_places = (looks.size_range_of(results), looks.total_bytes_of(results)) if results else None
    return (
        looks.topics_of(messages),
        looks.waits_of(messages),
        looks.are_normal(messages),
        looks.tags_codes_of(messages),
        of_places,
    )


def audited(sends: SendRun) -> list[dict[str, Any]]:
    """The events that the audit writes for a run, without their time."""
    queue = EventQueue(10_000)
    hook = audit_hooks.SendAudit(AuditSettings())
    hook.begin(Recorder("b", [queue]))
    hook.after(sends)
    events = [json.loads(line) for line in queue.look(100)]
    for event in events:
        del event["time"]
    return events


def shown(answer: Answer) -> tuple[object, ...]:
    """An answer as its receiver reads it, for whom its fields have no order."""
    assert isinstance(answer, (bytes, Command))
    (command,) = FrameDecoder().feed(answer if isinstance(answer, bytes) else encode(answer))
    return command.code, command.flag, command.opaque, sorted(command.fields().items())
