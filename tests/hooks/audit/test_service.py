"""The writer: a clean stop loses no event, a full disk loses events that are counted and reported, and the
broker is not affected by failures of its audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import Factory, define

from rmqkit.client import Client
from rmqkit.protocol import record
from rmqkit.protocol.codes import ResponseCode
from rmqkit_hook_audit import service
from rmqkit_hook_audit.events import Created, Event, now
from rmqkit_hook_audit.recorder import Queue, Recorder
from rmqkit_hook_audit.service import LAST_WRITE_S, RETRY_MS, Writer
from rmqkit_hook_audit.targets import CannotWrite, FileTarget, Target
from tests.faults.kit import PATIENCE_S, mounted, serving
from tests.hooks.audit.kit import FILE, audited, events_in


def event(name: str) -> Event:
    return Created(time=now(), broker="b", kind="topic", created=[name])


@define
class Fake(Target):
    """A target that takes lines; `room` limits how many more."""

    room: int = 1_000_000
    why: str = "disk full"
    taken: list[dict[str, Any]] = Factory(list)
    attempts: list[float] = Factory(list)
    closed: bool = False
    hangs: bool = False
    meanwhile: list[Callable[[], None]] = Factory(list)

    async def open(self) -> None:
        return

    async def write(self, lines: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.attempts.append(trio.current_time())
        if self.hangs:
            await trio.sleep_forever()
        while self.meanwhile:
            self.meanwhile.pop()()
        taken = lines[: self.room]
        self.taken += map(json.loads, taken)
        self.room -= len(taken)
        if len(taken) < len(lines):
            raise CannotWrite(self.why, len(taken))

    async def close(self) -> None:
        self.closed = True

    def names(self) -> list[str]:
        return [
            f"dropped {each['count']}" if each["event"] == "dropped" else each["created"][0]
            for each in self.taken
        ]


def put(queue: Queue, *found: str) -> None:
    for name in found:
        Recorder("b", [queue]).record(event(name))


async def test_events_are_written_in_order_and_at_once(nursery: trio.Nursery) -> None:
    """Events are written without waiting for a timer; those that come during a write go with the next
    write."""
    target = Fake()
    writer = Writer(target, Queue(10), "b")
    nursery.start_soon(writer.run)
    put(writer.queue, "a", "b")
    await trio.testing.wait_all_tasks_blocked()
    put(writer.queue, "c")
    await trio.testing.wait_all_tasks_blocked()
    assert (target.names(), len(target.attempts), len(writer.queue)) == (["a", "b", "c"], 2, 0)


async def test_a_target_that_takes_nothing_is_asked_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The target is asked every second; events that do not fit into the queue meanwhile are dropped, and the
    target is told their number once it takes events again. The log says so once."""
    target = Fake(room=1)
    writer = Writer(target, Queue(3), "b")
    nursery.start_soon(writer.run)
    put(writer.queue, "a", "b", "c")
    with trio.move_on_after(3.5 * RETRY_MS / 1000):
        await trio.sleep_forever()
    assert [round(at) for at in target.attempts] == [0, 1, 2, 3]
    put(writer.queue, "d", "e", "f")
    assert (target.names(), writer.queue.dropped) == (["a"], 2)
    target.room = 100
    await trio.sleep(1)
    put(writer.queue, "g")
    await trio.testing.wait_all_tasks_blocked()
    assert target.names() == ["a", "dropped 2", "b", "c", "d", "g"]
    (report,) = [each for each in target.taken if each["event"] == "dropped"]
    assert report["remark"] == "disk full"
    assert [record.getMessage() for record in caplog.records] == [
        "the audit cannot be written, 2 events wait: disk full",
        "the audit is written again; 2 events were dropped: disk full",
    ]


async def test_the_report_of_what_was_dropped_is_not_lost_either(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A target that fails at the report gets it again, with the events dropped since included."""
    target = Fake(room=0)
    writer = Writer(target, Queue(1), "b")
    nursery.start_soon(writer.run)
    put(writer.queue, "a", "b")
    await trio.sleep(1.5)
    put(writer.queue, "c")
    target.room = 1
    await trio.sleep(1)
    assert target.names() == ["dropped 2"]
    target.room = 9
    await trio.sleep(1)
    assert target.names() == ["dropped 2", "a"]


def test_a_send_of_many_messages_counts_as_many() -> None:
    """The bound is about memory, so it counts messages, not events."""
    queue = Queue(10)
    recorder = Recorder("b", [queue])
    recorder.record(event("a"), 7)
    recorder.record(event("b"), 4)
    recorder.record(event("c"), 3)
    assert (len(queue), queue.dropped, len(queue.look(10))) == (10, 4, 2)


async def test_a_mistake_in_writing_ends_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The events of the failed write are dropped and counted once; the next ones are written."""

    def fail() -> None:
        raise ValueError("boom")

    target = Fake(meanwhile=[fail])
    writer = Writer(target, Queue(10), "b")
    nursery.start_soon(writer.run)
    put(writer.queue, "a", "b")
    await trio.sleep(2)
    put(writer.queue, "c")
    await trio.sleep(2)
    assert target.names() == ["dropped 2", "c"]
    assert "boom" in caplog.text


async def test_what_waits_is_written_at_the_end() -> None:
    """`finish` returns as soon as the target has taken all waiting events."""
    target = Fake()
    writer = Writer(target, Queue(10_000), "b")
    put(writer.queue, *(str(at) for at in range(1_000)))
    await writer.finish()
    assert target.names() == [str(at) for at in range(1_000)]
    assert target.closed


@pytest.mark.parametrize("target", [Fake(room=1), Fake(hangs=True)], ids=["refuses", "hangs"])
async def test_a_target_that_fails_at_the_end_holds_up_nobody_for_long(
    target: Fake, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says how many events are lost."""
    writer = Writer(target, Queue(10), "b")
    put(writer.queue, "a", "b", "c")
    await writer.finish()
    assert trio.current_time() - target.attempts[0] <= LAST_WRITE_S
    lost = 3 - len(target.taken)
    assert (
        caplog.records[-1]
        .getMessage()
        .startswith(f"the broker stops and {lost} events of the audit could not be written")
    )
    assert target.closed


async def test_a_clean_stop_loses_no_event(tmp_path: Path) -> None:
    """The file has every send that was answered, up to the last one."""
    async with audited(tmp_path) as asker:
        for at in range(300):
            assert (await asker.send(f"m{at}")).code == 0
    assert [event["messages"][0]["id"] for event in events_in(tmp_path, "send")] == [
        f"m{at}" for at in range(300)
    ]


async def reach(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, while other tasks run."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_events_may_go_to_a_topic(tmp_path: Path) -> None:
    """The topic gets one message for each event, tagged with its kind, in order; reading the topic causes no
    events. The born host is the broker's own address."""
    async with audited(tmp_path, **{"plugins.audit.topic": "Audit"}) as asker:
        await asker.send("a", topic="Other")
        store = asker.running.context.store
        await reach(
            lambda: (
                len(events_in(tmp_path, "send")) == 1
                and store.max_offset("Audit", 0) == len(events_in(tmp_path))
            )
        )
        count = store.max_offset("Audit", 0)
        # The first pull creates the reader's group, and may already find the event of that.
        messages = list(record.unpack_all((await asker.pull(topic="Audit")).body))[:count]
        assert {message.born_host for message in messages} == {asker.running.context.store_host}
        events = [json.loads(message.body) for message in messages]
        assert events == events_in(tmp_path)[:count]
        assert [message.properties["TAGS"] for message in messages] == [event["event"] for event in events]
        await reach(lambda: store.max_offset("Audit", 0) == count + 1)
        for _ in range(5):
            assert (await asker.pull(topic="Audit")).code == 0
        await asker.send("b", topic="Other")
        await reach(lambda: len(events_in(tmp_path, "send")) == 2)
    assert [event["event"] for event in events_in(tmp_path)[count:]] == ["create", "send"]


async def test_a_topic_that_takes_nothing_does_not_hold_up_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has a queue of its own, and gets all events in order when the store takes messages again."""
    monkeypatch.setattr(service, "RETRY_MS", 1)
    async with audited(tmp_path, **{"plugins.audit.topic": "Audit", "plugins.audit.events": "send"}) as asker:
        store = asker.running.context.store
        store.refuse_writes("full")
        for at in range(3):
            assert (await asker.send(f"m{at}")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await reach(lambda: len(events_in(tmp_path, "send")) == 3)
        assert store.max_offset("Audit", 0) == 0
        store.refuse_writes(None)
        await reach(lambda: store.max_offset("Audit", 0) == 3)
        bodies = [
            json.loads(message.body) for message in record.unpack_all((await asker.pull(topic="Audit")).body)
        ]
    assert bodies == events_in(tmp_path, "send")


async def test_a_full_disk_costs_events_but_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real file system: sends succeed, lines stay whole, and once there is space the file says how many
    events are missing."""
    monkeypatch.setattr(service, "RETRY_MS", 1)
    failures, write = list[CannotWrite](), FileTarget.write

    async def counted(self: FileTarget, lines: Sequence[bytes]) -> None:
        try:
            await write(self, lines)
        except CannotWrite as failure:
            failures.append(failure)
            raise

    monkeypatch.setattr(FileTarget, "write", counted)
    with mounted(tmp_path / "disk", 128 * 1024) as disk:
        keys = {
            "plugins.audit.file": str(disk / "a.jsonl"),
            "plugins.audit.queueSize": "20",
            "plugins.audit.events": "send",
        }
        filler = disk / "filler"
        async with audited(tmp_path / "data", **keys) as asker:
            assert (await asker.send("before")).code == 0
            await reach(lambda: "before" in (disk / "a.jsonl").read_text())
            sends = 0

            async def send() -> None:
                nonlocal sends
                fill(filler)  # each time: a write that fails may free pages
                assert (await asker.send(f"m{sends}", properties=f"x\x01{'y' * 5000}\x02")).code == 0
                sends += 1

            # No event fits into the end of the file's last page. The queue cannot empty, so what exceeds it
            # costs events.
            while not failures:
                await send()
            for _ in range(42):
                await send()
            # Of two more writes that fail, the second began after the loss and will report it.
            begun = len(failures)
            await reach(lambda: len(failures) >= begun + 2)
            filler.unlink()
        events = [json.loads(line) for line in (disk / "a.jsonl").read_text().splitlines()]
    sent = [event["messages"][0]["id"] for event in events if event["event"] == "send"]
    dropped = [event for event in events if event["event"] == "dropped"]
    assert any("No space left" in event["remark"] for event in dropped)
    assert len(sent) + sum(event["count"] for event in dropped) == 1 + sends
    assert sent == sorted(sent, key=lambda name: -1 if name == "before" else int(name[1:]))


def fill(path: Path) -> None:
    """Use up the free space of a file system."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def test_a_killed_broker_leaves_whole_lines(tmp_path: Path) -> None:
    """SIGKILL loses only events not yet written, those of the last few milliseconds; the next run continues
    the same file."""
    settings = {"hooks": "audit", "store": "memory", "plugins.audit.events": "send"}
    sent: list[str] = []
    for _ in range(2):
        with serving(tmp_path, settings) as server:
            async with Client(server.namesrv) as client, client.producer("p") as producer:
                for _ in range(50):
                    sent.append((await producer.send("T", b"x")).message_id)
                await reach(lambda: (tmp_path / "data" / FILE).read_text().count(sent[-50]) == 1)
            server.kill()
    written = [event["messages"][0]["id"] for event in events_in(tmp_path / "data", "send")]
    for run in (sent[:50], sent[50:]):
        found = [each for each in written if each in run]
        assert found == run[: len(found)]
        assert found


async def test_two_brokers_of_one_process_have_their_own_audits(tmp_path: Path) -> None:
    """Neither broker writes events of the other."""
    async with audited(tmp_path / "a", brokerName="a") as one, audited(tmp_path / "b", brokerName="b") as two:
        await one.send("x")
        await two.send("y")
    for name, key in (("a", "x"), ("b", "y")):
        (event,) = events_in(tmp_path / name, "send")
        assert (event["broker"], event["messages"][0]["id"]) == (name, key)


async def test_what_is_dropped_during_the_last_write_is_reported_as_well(nursery: trio.Nursery) -> None:
    """The number is written without waiting for another event, which may never come."""
    target = Fake()
    writer = Writer(target, Queue(1), "b")
    target.meanwhile.append(lambda: put(writer.queue, "b"))
    nursery.start_soon(writer.run)
    put(writer.queue, "a")
    await trio.testing.wait_all_tasks_blocked()
    assert target.names() == ["a", "dropped 1"]
