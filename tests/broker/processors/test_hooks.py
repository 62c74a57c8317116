"""Message hooks registered by an external plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from attrs import Factory, define

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import PluginError, RequestRefused
from rmqkit.model import names
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import MessageType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower
from rmqkit.plugin.hooks import (
    RCV_EPOLLS,
    RCV_SUCCESS,
    SEND_BACK,
    SEND_BACK_TO_DLQ,
    ConsumeContext,
    ConsumeMessageHook,
    EachPutHook,
    EachSendHook,
    PutMessageHook,
    SendContext,
    SendMessageHook,
)
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request import RequestProcessor
from rmqkit.protocol import batch
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from tests.broker.desk import BrokerHarness, bodies
from tests.remoting.wire import Handler

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]
Seen = list[tuple[str, str, SendContext | ConsumeContext]]


@define
class Noting:
    """Records every call; raises a given error."""

    name: str
    seen: Seen
    before_error: Exception | None = None
    after_error: Exception | None = None

    def note_before(self, context: SendContext | ConsumeContext) -> None:
        self.seen.append((self.name, "before", context))
        if self.before_error is not None:
            raise self.before_error

    def note_after(self, context: SendContext | ConsumeContext) -> None:
        self.seen.append((self.name, "after", context))
        if self.after_error is not None:
            raise self.after_error


class WatchSends(Noting, EachSendHook):
    def before_each(self, context: SendContext) -> None:
        self.note_before(context)

    def after_each(self, context: SendContext) -> None:
        self.note_after(context)


class Guard(WatchSends):
    fail_closed = True


class WatchPulls(Noting, ConsumeMessageHook):
    def before(self, context: ConsumeContext) -> None:
        self.note_before(context)

    def after(self, context: ConsumeContext) -> None:
        self.note_after(context)


@define
class Plugin:
    """Registers its hooks in the opposite of the requested order."""

    send: Sequence[WatchSends] = ()
    consume: Sequence[WatchPulls] = ()
    put: Sequence[PutMessageHook] = ()
    dispatchers: Sequence[Dispatcher] = ()
    processors: dict[int, RequestProcessor] = Factory(dict)

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        for order, hook in reversed(list(enumerate(self.send))):
            register(hook.name, hook, order=order)

    @hookimpl
    def rmqkit_register_consume_message_hooks(
        self, register: Register[ConsumeMessageHook], config: Config
    ) -> None:
        for order, hook in reversed(list(enumerate(self.consume))):
            register(hook.name, hook, order=order)

    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        for order, hook in reversed(list(enumerate(self.put))):
            register(f"put{order}", hook, order=order)

    @hookimpl
    def rmqkit_register_dispatchers(self, register: Register[LogFollower], config: Config) -> None:
        for order, dispatcher in reversed(list(enumerate(self.dispatchers))):
            register(f"dispatcher{order}", dispatcher, order=order)

    @hookimpl
    def rmqkit_register_processors(self, register: RegisterProcessor, broker: Broker) -> None:
        for code, processor in self.processors.items():
            register(code, processor, long_wait=code == 4_242)


@define
class PutNote(EachPutHook):
    """Records the topics it sees and runs a function of the test."""

    act: Callable[[PutMessage], None]

    def before_each(self, message: PutMessage) -> None:
        self.act(message)


@define
class DispatchNote(Dispatcher):
    """Records dispatched messages."""

    name: str
    log: list[str]
    error: Exception | None = None

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.log += [f"{self.name} {entry.message.topic} {entry.at.queue_offset}" for entry in entries]
        if self.error is not None:
            raise self.error


def order(seen: Seen) -> list[tuple[str, str]]:
    return [(name, when) for name, when, _ in seen]


@pytest.mark.row("S098", "S099", "S101")
async def test_send_hooks_run_in_order_with_the_context_of_the_send(opened: Opened) -> None:
    """The first call has the fields of the request; the second also has code, ids and place, in the same
    object."""
    seen: Seen = []
    async with opened(extra=[("watch", Plugin(send=[WatchSends("a", seen), WatchSends("b", seen)]))]) as desk:
        got = await desk.sent(
            body=b"body", queue_id=2, properties={"UNIQ_KEY": "K", "x": "y"}, born_timestamp=5
        )
        assert order(seen) == [("a", "before"), ("b", "before"), ("a", "after"), ("b", "after")]
        context = seen[0][2]
        assert all(context is other for _, _, other in seen)
        assert isinstance(context, SendContext)
        assert (context.producer_group, context.topic, context.queue_id, context.body_bytes) == (
            "p",
            "T",
            2,
            4,
        )
        assert (context.message_id, context.properties["x"], context.born_timestamp_ms) == ("K", "y", 5)
        assert (context.born_host, context.broker_address) == ("127.0.0.1:40000", "127.0.0.1:10911")
        assert context.request_timestamp_ms == desk.clock.now_ms()
        assert (context.code, context.remark, context.offset_message_id, context.queue_offset) == (
            0,
            None,
            got.msg_id,
            0,
        )
        assert (context.region_id, context.owner, context.namespace, context.message_type) == (
            "DefaultRegion",
            None,
            "",
            MessageType.NORMAL,
        )
        assert (context.success, context.message_count, context.stored_bytes) == (
            True,
            1,
            context.results[0].size_bytes,
        )
        assert (context.messages[0].topic, context.messages[0].queue_id) == ("T", 2)


@pytest.mark.row("S099")
async def test_a_send_hook_refuses_before_anything_happens(opened: Opened) -> None:
    """The hook's code and text are the answer; no topic is created, nothing is stored, later hooks are not
    called, and earlier ones get the end."""
    seen: Seen = []
    refusal = RequestRefused(ResponseCode.NO_PERMISSION, "not today")
    hooks = [WatchSends("a", seen), WatchSends("b", seen, before_error=refusal), WatchSends("c", seen)]
    async with opened(extra=[("watch", Plugin(send=hooks))]) as desk:
        answer = await desk.send("New")
        assert (answer.code, answer.remark) == (16, "not today")
        assert desk.is_empty()
        assert desk.broker.topics.get("New") is None
        assert order(seen) == [("a", "before"), ("b", "before"), ("a", "after")]
        context = seen[-1][2]
        assert isinstance(context, SendContext)
        assert (context.code, context.remark, context.success, context.message_count) == (
            16,
            "not today",
            False,
            0,
        )


@pytest.mark.row("S099")
async def test_a_send_hook_that_breaks_refuses_nothing(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is stored and the other hooks are called; the log names hook and plugin."""
    seen: Seen = []
    async with opened(
        extra=[
            (
                "watch",
                Plugin(send=[WatchSends("a", seen, before_error=ValueError("boom")), WatchSends("b", seen)]),
            )
        ]
    ) as desk:
        assert (await desk.send()).code == 0
        assert order(seen) == [("a", "before"), ("b", "before"), ("a", "after"), ("b", "after")]
    assert "send message hook 'a' of plugin 'watch' failed in before" in caplog.text
    assert "boom" in caplog.text


@pytest.mark.row("S099")
async def test_a_send_hook_that_fails_closed_refuses_when_it_breaks(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is stored and no later hook is called; the producer learns which hook failed, the log why."""
    seen: Seen = []
    hooks = [Guard("a", seen, before_error=ValueError("boom")), WatchSends("b", seen)]
    async with opened(extra=[("watch", Plugin(send=hooks))]) as desk:
        answer = await desk.send()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "send message hook 'a' of plugin 'watch' failed: ValueError: boom"
        assert desk.is_empty()
        assert order(seen) == [("a", "before")]
    assert "send message hook 'a' of plugin 'watch' failed in before" in caplog.text


@pytest.mark.row("S101")
async def test_an_after_hook_that_breaks_changes_nothing(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is unchanged and the next hook is called; the error is logged."""
    seen: Seen = []
    async with opened(
        extra=[
            (
                "watch",
                Plugin(send=[WatchSends("a", seen, after_error=ValueError("boom")), WatchSends("b", seen)]),
            )
        ]
    ) as desk:
        assert (await desk.send()).code == 0
        assert order(seen)[2:] == [("a", "after"), ("b", "after")]
    assert "boom" in caplog.text


async def test_after_hooks_see_a_refusal_of_the_store(opened: Opened) -> None:
    """Code and remark are those of the answer."""
    seen: Seen = []

    def refuse(message: PutMessage) -> None:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "full")

    async with opened(extra=[("watch", Plugin(send=[WatchSends("a", seen)], put=[PutNote(refuse)]))]) as desk:
        assert (await desk.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        context = seen[-1][2]
        assert isinstance(context, SendContext)
        assert seen[-1][1] == "after"
        assert (context.code, context.remark, context.message_id) == (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "full",
            None,
        )


@pytest.mark.row("S098", "S101")
async def test_a_batch_is_one_send_to_the_hooks(opened: Opened) -> None:
    """A batch has one pair of calls, with the size of the whole body and all ids."""
    seen: Seen = []
    async with opened(extra=[("watch", Plugin(send=[WatchSends("a", seen)]))]) as desk:
        body = batch.encode(
            [BatchItem(0, b"1", b"UNIQ_KEY\x01K1\x02"), BatchItem(0, b"2", b"UNIQ_KEY\x01K2\x02")]
        )
        header = SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=0, batch=True)
        assert (await desk.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)).code == 0
        assert order(seen) == [("a", "before"), ("a", "after")]
        context = seen[1][2]
        assert isinstance(context, SendContext)
        assert context.body_bytes == len(body)
        assert context.message_id == "K1,K2"
        assert (context.offset_message_id or "").count(",") == 1


@pytest.mark.row("S117")
async def test_consume_hooks_run_before_a_pull_is_answered(opened: Opened) -> None:
    """The context has group, queue, final code and found messages; a held pull is seen when it is
    answered."""
    seen: Seen = []
    async with opened(
        extra=[("watch", Plugin(consume=[WatchPulls("a", seen), WatchPulls("b", seen)]))]
    ) as desk:
        assert await desk.outcome(desk.pull_request(sys_flag=6, suspend_timeout_millis=1_000)) is None
        assert seen == []
        await desk.sent(body=b"body")
        assert order(seen) == [("a", "before"), ("b", "before")]
        context = seen[0][2]
        assert isinstance(context, ConsumeContext)
        assert (context.group, context.topic, context.queue_id, context.code, context.message_count) == (
            "g",
            "T",
            0,
            0,
            1,
        )
        assert context.client_address == desk.peer.remote_text
        assert (context.status, context.success, context.offset, context.next_offset) == (
            RCV_SUCCESS,
            True,
            0,
            1,
        )
        await desk.pull(offset=9)
        context = seen[-1][2]
        assert isinstance(context, ConsumeContext)
        assert (context.code, context.message_count, context.body_bytes) == (
            ResponseCode.PULL_OFFSET_MOVED,
            0,
            0,
        )
        assert (context.status, context.success, context.offset, context.next_offset) == (
            RCV_EPOLLS,
            False,
            9,
            1,
        )


@pytest.mark.row("S103")
async def test_consume_hooks_run_after_a_send_back(opened: Opened) -> None:
    """The context has the original topic, the target topic, and whether the message is a dead letter."""
    seen: Seen = []
    async with opened(extra=[("watch", Plugin(consume=[WatchPulls("a", seen)]))]) as desk:
        await desk.sent(body=b"body")
        await desk.send_back(0)
        await desk.send_back(0, delay_level=-1)
        assert order(seen) == [("a", "after")] * 2
        contexts = [context for _, _, context in seen if isinstance(context, ConsumeContext)]
        assert [context.target_topic for context in contexts] == ["%RETRY%g", "%DLQ%g"]
        assert [context.status for context in contexts] == [SEND_BACK, SEND_BACK_TO_DLQ]
        assert {(c.group, c.topic, c.message_count, c.body_bytes, c.code, c.offset) for c in contexts} == {
            ("g", "T", 1, 4, 0, 0)
        }


async def test_a_consume_hook_that_breaks_changes_nothing(opened: Opened) -> None:
    """Pull, send-back and later hooks are not affected."""
    seen: Seen = []
    broken = WatchPulls("a", seen, before_error=ValueError("boom"), after_error=RequestRefused(16, "no"))
    async with opened(extra=[("watch", Plugin(consume=[broken, WatchPulls("b", seen)]))]) as desk:
        await desk.sent(body=b"body")
        assert bodies(await desk.pull()) == [b"body"]
        assert (await desk.send_back(0)).code == 0
        assert order(seen) == [("a", "before"), ("b", "before"), ("a", "after"), ("b", "after")]


async def test_put_hooks_see_every_message_in_order_and_may_move_it(opened: Opened) -> None:
    """Hooks also see messages written by the broker; after the delay plugin they see the parked form."""
    topics: list[str] = []

    def note(message: PutMessage) -> None:
        topics.append(message.topic)

    def move(message: PutMessage) -> None:
        if message.topic == "T":
            message.topic, message.queue_id = "Moved", 1

    async with opened(extra=[("watch", Plugin(put=[PutNote(note), PutNote(move), PutNote(note)]))]) as desk:
        await desk.sent(body=b"x")
        assert (desk.stored(), len(desk.stored("Moved", 1))) == ([], 1)
        await desk.send_back(0)
        assert topics == ["T", "Moved", "%RETRY%g", "%RETRY%g"]
        assert len(desk.stored(names.SCHEDULE_TOPIC, 2)) == 1


async def test_dispatchers_run_in_order_behind_the_append(opened: Opened) -> None:
    """A failing dispatcher affects neither the sender nor the next one."""
    log: list[str] = []
    plugin = Plugin(dispatchers=[DispatchNote("a", log, ValueError("boom")), DispatchNote("b", log)])
    async with opened(extra=[("watch", plugin)]) as desk:
        await desk.sent()
        await desk.sent()
        assert log == ["a T 0", "b T 0", "a T 1", "b T 1"]


async def test_a_plugins_processor_adds_and_replaces(opened: Opened) -> None:
    """A plugin can add a code and replace a built-in processor; `long_wait` keeps a code off the fast
    port."""

    def mine(request: Command, peer: object) -> Command:
        return answer(request, 0, "mine")

    plugin = Plugin(
        processors={4_242: Handler(mine), 4_243: Handler(mine), RequestCode.HEART_BEAT: Handler(mine)}
    )
    async with opened(extra=[("mine", plugin)]) as desk:
        for code in plugin.processors:
            assert (await desk.ask(code)).remark == "mine"
        assert 4_242 not in desk.fast_router.processors
        assert 4_243 in desk.fast_router.processors


async def test_two_plugins_for_one_code_stop_the_start(opened: Opened) -> None:
    """Two processors for one code are an error, because their order would be arbitrary."""
    first, second = (
        Plugin(processors={4_242: Handler(lambda request, peer: answer(request))}) for _ in range(2)
    )
    with pytest.raises(PluginError, match="4242"):
        async with opened(extra=[("first", first), ("second", second)]):
            pass
