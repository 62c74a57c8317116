"""Send hooks that take many sends at a time, and what they are told of sends that are not plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from attrs import Factory, define

from rmqkit import hookimpl
from rmqkit.abc import BatchProcessor, Outcome, Peer
from rmqkit.broker.processors.plain_sends import PlainSends
from rmqkit.config import Config
from rmqkit.errors import PluginError, StoreNotWritable
from rmqkit.hooks import ManyRequestsHook, ManySendsHook, RpcHook, SendContext, SendMessageHook, SentTogether
from rmqkit.hookspecs import Register
from rmqkit.model.message_type import MessageType
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from tests.broker.desk import Desk
from tests.broker.slow_store import SLOW, Disk

Opened = Callable[..., AbstractAsyncContextManager[Desk]]


@define
class Many(ManySendsHook):
    """Notes what it is shown."""

    together: list[SentTogether] = Factory(list)
    single: list[SendContext] = Factory(list)

    def after_many(self, sends: SentTogether) -> None:
        self.together.append(sends)

    def after(self, context: SendContext) -> None:
        self.single.append(context)


class Asking(SendMessageHook):
    """Wants to be asked."""


class Rpc(RpcHook):
    """Looks at requests of the codes it is given."""

    def __init__(self, *codes: int) -> None:
        self.codes = frozenset(codes) or None


class Looking(ManyRequestsHook):
    """Looks at all requests."""

    def before_many(self, requests: Sequence[Command], peer: Peer) -> None:
        return

    def after_many(self, requests: Sequence[Command], peer: Peer) -> None:
        return


@define
class Plugin:
    send: tuple[SendMessageHook, ...] = ()
    rpc: tuple[RpcHook, ...] = ()

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        for at, hook in enumerate(self.send):
            register(f"send{at}", hook)

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
        for at, hook in enumerate(self.rpc):
            register(f"rpc{at}", hook)


#: The short way is for stores that have written when the append returns.
SHORT_WAY = pytest.mark.only_store("memory", "mmap", why="asks for answers at once, which takes a store that writes with the append")


def arrived(*sends: tuple[int, str, bytes]) -> list[Command]:
    """Requests as they come out of a connection: (code, properties, body), with numbers for opaques."""
    frames = [
        encode(request(code, SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=at % 4, properties=text), body, opaque=at))
        for at, (code, text, body) in enumerate(sends)
    ]
    return FrameDecoder().feed(b"".join(frames))


def plain(key: str, *others: str) -> tuple[int, str, bytes]:
    text = "".join(f"{name}\x01{value}\x02" for name, value in zip(("UNIQ_KEY", *others[::2]), (key, *others[1::2]), strict=True))
    return RequestCode.SEND_MESSAGE_V2, text, key.encode()


def handle(desk: Desk, *sends: tuple[int, str, bytes]) -> list[Outcome]:
    processor = desk.router.processors[RequestCode.SEND_MESSAGE_V2]
    assert isinstance(processor, BatchProcessor)
    return processor.process_many(arrived(*sends), desk.peer)


async def known(desk: Desk) -> None:
    """The first send to a topic is never plain: whether it exists is looked up."""
    await desk.sent(properties={"UNIQ_KEY": "first"})


@pytest.mark.row("S101")
@SHORT_WAY
async def test_plain_sends_are_shown_together(opened: Opened) -> None:
    """One call for what arrived together, with requests, messages and places in step; the answers are encoded on the short way."""
    hook = Many()
    async with opened(extra=[("many", Plugin((hook,)))]) as desk:
        await known(desk)
        outcomes = handle(desk, plain("a"), plain("b"), plain("c"))
        assert [type(outcome) for outcome in outcomes] == [bytes] * 3
        (sends,) = hook.together
        assert (sends.peer, sends.code, sends.remark, sends.success) == (desk.peer, 0, None, True)
        assert [message.properties["UNIQ_KEY"] for message in sends.messages] == ["a", "b", "c"]
        assert [request.opaque for request in sends.requests] == [0, 1, 2]
        assert {request.header(SendMessageRequestHeaderV2).producer_group for request in sends.requests} == {"p"}
        assert [desk.stored("T", at)[-1].physical_offset for at in range(3)] == [at.physical_offset for at in sends.landed]
        assert [context.unique_key for context in hook.single] == ["first"]


@SHORT_WAY
async def test_what_is_not_plain_is_shown_by_itself(opened: Opened) -> None:
    """A delayed message, a batch and a refused one, and what arrived together with them: each with its context, and nothing twice."""
    hook = Many()
    items = batch.encode([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"")])
    async with opened(extra=[("many", Plugin((hook,)))]) as desk:
        await known(desk)
        hook.single.clear()
        handle(
            desk, plain("a"), plain("b", "DELAY", "1"), (RequestCode.SEND_BATCH_MESSAGE, "", items), (RequestCode.SEND_MESSAGE_V2, "", b"")
        )
        assert hook.together == []
        # Singles are stored together, a batch where it stands.
        assert [(context.unique_key, context.code, context.message_count) for context in hook.single] == [
            ("a", 0, 1),
            ("b", 0, 1),
            (None, 0, 2),
            (None, ResponseCode.MESSAGE_ILLEGAL, 0),
        ]
        assert [context.message_type for context in hook.single[:2]] == [MessageType.NORMAL, MessageType.DELAY]
        assert (hook.single[3].success, hook.single[3].remark) == (False, "the message has no body; at least one byte is needed")


@pytest.mark.parametrize(
    ("fault", "code", "remark"),
    [(None, 0, None), (StoreNotWritable("fsync failed"), 14, "the message may or may not be stored: fsync failed")],
)
@pytest.mark.only_store(why="brings its own store")
async def test_plain_sends_that_wait_for_the_disk_are_shown_when_they_are_answered(
    opened: Opened, fault: Exception | None, code: int, remark: str | None
) -> None:
    """With the code of the answer; those that do not wait are shown at once."""
    disk, hook = Disk(), Many()
    async with opened(extra=[("disk", disk), ("many", Plugin((hook,)))], **SLOW) as desk:
        await desk.sent(properties={"UNIQ_KEY": "first", "WAIT": "false"})
        handle(desk, plain("a"), plain("b", "WAIT", "false"), plain("c"))
        assert [[message.body for message in sends.messages] for sends in hook.together] == [[b"b"]]
        disk.change(flushed=fault is None, fault=fault)
        await desk.peer.all_answered()
        _, late = hook.together
        assert [message.body for message in late.messages] == [b"a", b"c"]
        assert (late.code, late.remark, late.success) == (code, remark, fault is None)


@pytest.mark.parametrize(
    ("plugin", "stays"),
    [
        (Plugin(), True),
        (Plugin((Many(), Many())), True),
        (Plugin((Many(), Asking())), False),
        (Plugin(rpc=(Rpc(RequestCode.HEART_BEAT),)), True),
        (Plugin(rpc=(Rpc(RequestCode.HEART_BEAT), Rpc(RequestCode.SEND_MESSAGE_V2))), False),
        (Plugin(rpc=(Rpc(),)), False),
        (Plugin((Many(),), rpc=(Looking(), Rpc(RequestCode.HEART_BEAT))), True),
        (Plugin(rpc=(Looking(), Rpc())), False),
    ],
)
@SHORT_WAY
async def test_the_short_way_stays_open_unless_a_hook_wants_to_be_asked(opened: Opened, plugin: Plugin, stays: bool) -> None:
    """Hooks that only look cost a call for what arrived together; one that asks, and one that wants to see every request, close it."""
    async with opened(extra=[("hooks", plugin)]) as desk:
        assert (PlainSends.for_broker(desk.broker, {}, "", "") is not None) == stays
        await known(desk)
        assert [type(outcome) is bytes for outcome in handle(desk, plain("a"))] == [stays]


@SHORT_WAY
async def test_with_a_hook_that_asks_the_others_get_contexts(opened: Opened) -> None:
    """Every send is shown once, and to all."""
    hook = Many()
    async with opened(extra=[("hooks", Plugin((hook, Asking())))]) as desk:
        await known(desk)
        handle(desk, plain("a"), plain("b"))
        assert [context.unique_key for context in hook.single] == ["first", "a", "b"]
        assert hook.together == []


async def test_a_hook_that_takes_many_cannot_be_asked(opened: Opened) -> None:
    """Its `before` would be called for some sends only: the start says so."""

    class Both(Many):
        def before(self, context: SendContext) -> None:
            raise AssertionError("never called")

    with pytest.raises(PluginError, match="'send0' of plugin 'hooks' is a ManySendsHook and overrides before"):
        async with opened(extra=[("hooks", Plugin((Both(),)))]):
            raise AssertionError("it started")


async def test_a_hook_cannot_change_what_is_sent(opened: Opened) -> None:
    """The properties are there to be read."""

    class Meddler(SendMessageHook):
        def before(self, context: SendContext) -> None:
            context.properties["x"] = "y"  # type: ignore[index]

    async with opened(extra=[("hooks", Plugin((Meddler(),)))]) as desk:
        await known(desk)
        assert "x" not in desk.stored()[0].properties
