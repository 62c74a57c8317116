"""Send hooks take runs: sends shown together, refusals by index, and the results passed to `after`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from attrs import Factory, define

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused, StoreNotWritable
from rmqkit.model.message_type import MessageType
from rmqkit.plugin.hooks import EachSendHook, Refusals, SendContext, SendMessageHook, SendRun
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import Outcome, whole
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from tests.broker.desk import BrokerHarness
from tests.broker.slow_store import SLOW, Disk

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


@define
class Runs(SendMessageHook):
    """Notes the runs it is shown; refuses the sends whose unique keys it is given."""

    refused: dict[str, Exception] = Factory(dict)
    before_runs: list[list[str | None]] = Factory(list)
    after_runs: list[SendRun] = Factory(list)

    def before(self, sends: SendRun) -> Refusals | None:
        self.before_runs.append([properties.get("UNIQ_KEY") for properties in sends.properties])
        return {
            at: self.refused[key]
            for at, key in enumerate(self.before_runs[-1])
            if key and key in self.refused
        }

    def after(self, sends: SendRun) -> None:
        self.after_runs.append(sends)

    @property
    def ends(self) -> list[tuple[list[str | None], int]]:
        """Keys and code of each run that ended."""
        return [([each.message_id for each in sends], sends.code) for sends in self.after_runs]


@define
class Plugin:
    send: tuple[SendMessageHook, ...] = ()

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        for at, hook in enumerate(self.send):
            register(f"send{at}", hook)


#: For stores that have written when the append returns.
AT_ONCE = pytest.mark.only_store(
    "memory", "mmap", why="asks for answers at once, which takes a store that writes with the append"
)


def arrived(*sends: tuple[int, str, bytes]) -> list[Command]:
    """Requests as they come out of a connection: (code, properties, body), with numbers for opaques."""
    frames = [
        encode(
            request(
                code,
                SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=at % 4, properties=text),
                body,
                opaque=at,
            )
        )
        for at, (code, text, body) in enumerate(sends)
    ]
    return FrameDecoder().feed(b"".join(frames))


def single(key: str, *others: str) -> tuple[int, str, bytes]:
    text = "".join(
        f"{name}\x01{value}\x02"
        for name, value in zip(("UNIQ_KEY", *others[::2]), (key, *others[1::2]), strict=True)
    )
    return RequestCode.SEND_MESSAGE_V2, text, key.encode()


def pair(*keys: str) -> tuple[int, str, bytes]:
    items = [BatchItem(0, key.encode(), f"UNIQ_KEY\x01{key}\x02".encode()) for key in keys]
    return RequestCode.SEND_BATCH_MESSAGE, "", batch.encode(items)


def handle(desk: BrokerHarness, *sends: tuple[int, str, bytes]) -> list[Outcome]:
    processor = desk.router.processors[RequestCode.SEND_MESSAGE_V2]
    return list(processor.process(arrived(*sends), desk.peer))


def codes(outcomes: list[Outcome]) -> list[int]:
    return [whole(outcome).code for outcome in outcomes]


@pytest.mark.row("S101")
@AT_ONCE
async def test_sends_that_arrive_together_are_shown_together(opened: Opened) -> None:
    """One call with columns in step: requests, headers, properties, messages and places."""
    hook = Runs()
    async with opened(extra=[("runs", Plugin((hook,)))]) as desk:
        outcomes = handle(desk, single("a"), single("b"), single("c"))
        assert [type(outcome) for outcome in outcomes] == [bytes] * 3
        assert hook.before_runs == [["a", "b", "c"]]
        (sends,) = hook.after_runs
        assert (sends.peers, sends.code, sends.remark, sends.success) == ([desk.peer] * 3, 0, None, True)
        assert [message.properties["UNIQ_KEY"] for message in sends.messages] == ["a", "b", "c"]
        assert [request.opaque for request in sends.requests] == [0, 1, 2]
        assert {header.producer_group for header in sends.headers} == {"p"}
        assert [desk.stored("T", at)[-1].physical_offset for at in range(3)] == [
            at.physical_offset for at in sends.results
        ]


@AT_ONCE
async def test_what_is_peculiar_stays_in_its_run(opened: Opened) -> None:
    """A delayed message and a batch end together with their neighbours, in order; what a check refuses ends
    by itself."""
    hook = Runs()
    async with opened(extra=[("runs", Plugin((hook,)))]) as desk:
        outcomes = handle(
            desk,
            single("a"),
            single("b", "DELAY", "1"),
            pair("c", "d"),
            (RequestCode.SEND_MESSAGE_V2, "", b""),
            single("e"),
        )
        assert codes(outcomes) == [0, 0, 0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert hook.before_runs == [["a", "b", None, None, "e"]]
        assert hook.ends == [([None], ResponseCode.MESSAGE_ILLEGAL), (["a", "b", "c,d", "e"], 0)]
        refused, stored = hook.after_runs
        assert (refused.remark, refused[0].message_count, refused[0].offset_message_id) == (
            "the message has no body; at least one byte is needed",
            0,
            None,
        )
        assert [(each.message_type, each.message_count) for each in stored] == [
            (MessageType.NORMAL, 1),
            (MessageType.DELAY, 1),
            (MessageType.NORMAL, 2),
            (MessageType.NORMAL, 1),
        ]
        assert [at.physical_offset for at in stored.results] == sorted(
            at.physical_offset for at in stored.results
        )
        assert [message.body for message in stored[2].messages] == [b"c", b"d"]


@pytest.mark.row("S099")
@AT_ONCE
async def test_a_hook_refuses_some_of_a_run(opened: Opened) -> None:
    """Other sends are stored. Earlier hooks see the refusal in `after`; later hooks do not see the send."""
    no = RequestRefused(ResponseCode.NO_PERMISSION, "no")
    first, second, third = Runs(), Runs({"b": no, "d": no}), Runs({"a": no})
    async with opened(extra=[("runs", Plugin((first, second, third)))]) as desk:
        outcomes = handle(desk, single("a"), single("b"), single("c"), single("d"))
        assert codes(outcomes) == [16, 16, 0, 16]
        assert [whole(outcome).opaque for outcome in outcomes] == [0, 1, 2, 3]
        assert third.before_runs == [["a", "c"]]
        assert sorted(first.ends) == [(["a"], 16), (["b"], 16), (["c"], 0), (["d"], 16)]
        assert sorted(second.ends) == [(["a"], 16), (["c"], 0)]
        assert third.ends == [(["c"], 0)]
        assert [len(desk.stored("T", queue_id)) for queue_id in range(4)] == [0, 0, 1, 0]


@AT_ONCE
async def test_a_failure_of_a_hook_refuses_nothing(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; only RequestRefused counts, raised it refuses the whole run."""

    class Breaks(SendMessageHook):
        error: Exception = ValueError("boom")

        def before(self, sends: SendRun) -> Refusals | None:
            raise self.error

    breaks = Breaks()
    async with opened(extra=[("runs", Plugin((Runs({"a": ValueError("bang")}), breaks)))]) as desk:
        assert codes(handle(desk, single("a"), single("b"))) == [0, 0]
        assert "bang" in caplog.text
        assert "send message hook 'send1' of plugin 'runs' failed in before" in caplog.text
        breaks.error = RequestRefused(ResponseCode.NO_PERMISSION, "closed")
        assert codes(handle(desk, single("a"), single("b"))) == [16, 16]


@pytest.mark.parametrize(
    ("fault", "code", "remark"),
    [
        (None, 0, None),
        (StoreNotWritable("fsync failed"), 14, "the message may or may not be stored: fsync failed"),
    ],
)
@pytest.mark.only_store(why="brings its own store")
async def test_sends_that_wait_for_the_disk_are_shown_when_they_are_answered(
    opened: Opened, fault: Exception | None, code: int, remark: str | None
) -> None:
    """With the code of the answer; those that do not wait are shown at once."""
    disk, hook = Disk(), Runs()
    async with opened(extra=[("disk", disk), ("runs", Plugin((hook,)))], **SLOW) as desk:
        handle(desk, single("a"), single("b", "WAIT", "false"), pair("c", "d"))
        assert hook.ends == [(["b"], 0)]
        disk.change(flushed=fault is None, fault=fault)
        await desk.peer.all_answered()
        _, late = hook.after_runs
        assert [message.body for message in late.messages] == [b"a", b"c", b"d"]
        assert (late.code, late.remark, late.success) == (code, remark, fault is None)


@AT_ONCE
async def test_a_context_is_the_same_before_and_after(opened: Opened) -> None:
    """Also where others of its run were refused in between: a hook may keep it."""
    kept: list[SendContext] = []
    ended: list[SendContext] = []

    class Keeps(EachSendHook):
        def before_each(self, context: SendContext) -> None:
            kept.append(context)

        def after_each(self, context: SendContext) -> None:
            ended.append(context)

    refuses = Runs({"b": RequestRefused(ResponseCode.NO_PERMISSION, "no")})
    async with opened(extra=[("runs", Plugin((Keeps(), refuses)))]) as desk:
        handle(desk, single("a"), single("b"), single("c"))
        assert [context.message_id for context in kept] == ["a", "b", "c"]
        assert [kept.index(context) for context in ended] == [1, 0, 2]
        assert [context.code for context in kept] == [0, 16, 0]
        assert [context.message_count for context in kept] == [1, 0, 1]


async def test_a_hook_cannot_change_what_is_sent(opened: Opened) -> None:
    """The properties of a context are there to be read."""

    class Meddler(EachSendHook):
        def before_each(self, context: SendContext) -> None:
            context.properties["x"] = "y"  # type: ignore[index]

    async with opened(extra=[("hooks", Plugin((Meddler(),)))]) as desk:
        await desk.sent()
        assert "x" not in desk.stored()[0].properties
