"""Client hooks: when each kind is called, its arguments, and the effect of its errors."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from attrs import Factory, define

from rmqkit.client import (
    Client,
    ClientError,
    Message,
    MessageIllegal,
    ReceivedMessage,
    SendFailed,
    TransactionState,
)
from rmqkit.client.hooks import (
    CallHook,
    CheckForbiddenContext,
    CheckForbiddenHook,
    ClientConsumeContext,
    ClientConsumeHook,
    ClientHook,
    ClientSendContext,
    ClientSendHook,
    ConsumeReturnType,
    EndTransactionContext,
    EndTransactionHook,
    FilterMessageContext,
    FilterMessageHook,
    HookedClient,
    Mode,
)
from rmqkit.errors import PluginError
from rmqkit.model.message_type import MessageType
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from tests.client.fake_cluster import NAMESRV, FakeCluster, cluster
from tests.client.fakes import Network, on_both_backends, run
from tests.client.producing.transacting import COMMIT, ROLLBACK, asking

SEND = RequestCode.SEND_MESSAGE_V2


@define
class Sends(ClientSendHook):
    """Records copies of its arguments, and runs functions given by the test."""

    seen: list[tuple[str, ClientSendContext]] = Factory(list)
    before: Callable[[ClientSendContext], None] = lambda context: None
    after: Callable[[ClientSendContext], None] = lambda context: None

    def before_send(self, context: ClientSendContext) -> None:
        self.seen.append(("before", copy(context)))
        self.before(context)

    def after_send(self, context: ClientSendContext) -> None:
        self.seen.append(("after", copy(context)))
        self.after(context)


@define
class Consumes(ClientConsumeHook):
    seen: list[tuple[str, list[bytes], ConsumeReturnType]] = Factory(list)
    contexts: list[ClientConsumeContext] = Factory(list)

    def before_consume(self, context: ClientConsumeContext) -> None:
        self.contexts.append(context)
        self.seen.append(("before", [message.body for message in context.messages], context.result))

    def after_consume(self, context: ClientConsumeContext) -> None:
        self.seen.append(("after", [message.body for message in context.messages], context.result))


@on_both_backends
def test_a_send_is_shown_before_and_after(backend: str) -> None:
    """A send has one pair of calls: the first with the requested values, the second with destination and
    result."""

    async def body() -> None:
        hook = Sends()
        async with cluster(hooks=[hook], client_id="me") as (_, client), client.producer("pg") as producer:
            result = await producer.send("T", b"hello", tag="a", delay_level=3)
        (when, first), (then, second) = hook.seen
        assert (when, then) == ("before", "after")
        assert (first.client_id, first.group, first.mode, first.topic, first.namespace) == (
            "me",
            "pg",
            Mode.SYNC,
            "T",
            "",
        )
        assert (first.messages[0].body, first.message_type) == (b"hello", MessageType.DELAY)
        assert (first.queue, first.address, first.attempts, first.result) == (None, None, 0, None)
        assert (second.result, second.queue, second.attempts, second.error) == (result, result.queue, 1, None)
        assert (second.message_ids, second.address) == ((result.message_id,), "10.0.0.1:10911")

    run(backend, body)


@on_both_backends
def test_a_failed_send_is_shown_with_its_error(backend: str) -> None:
    """All attempts count as one send, whose error is the application's. An invalid message has no attempt."""

    async def body() -> None:
        hook = Sends()
        async with cluster("ab", hooks=[hook]) as (fake, client), client.producer("pg") as producer:
            for broker in fake.brokers.values():
                broker.overrides[SEND] = lambda command: answer(command, ResponseCode.SYSTEM_BUSY, "wait")
            with pytest.raises(SendFailed) as failed:
                await producer.send("T", b"x")
            with pytest.raises(MessageIllegal) as wrong:
                await producer.send("T", b"")
        _, (_, after), _, (_, never) = hook.seen
        assert (after.error, after.attempts, after.result) == (failed.value, 3, None)
        assert after.address is not None
        assert (never.error, never.attempts, never.queue, never.message_ids) == (wrong.value, 0, None, ())

    run(backend, body)


@on_both_backends
def test_a_cancelled_send_is_shown_as_well(backend: str) -> None:
    """The second call is also made when a send is cancelled."""

    async def body() -> None:
        hook = Sends()
        async with cluster(hooks=[hook]) as (fake, client), client.producer("pg") as producer:
            fake.brokers["broker-a"].overrides[SEND] = lambda command: None
            with anyio.move_on_after(0.1):
                await producer.send("T", b"x")
        assert [when for when, _ in hook.seen] == ["before", "after"]
        assert isinstance(hook.seen[1][1].error, anyio.get_cancelled_exc_class())

    run(backend, body)


@on_both_backends
def test_batches_and_one_way_sends_are_sends(backend: str) -> None:
    """A batch is one send of several messages; a one-way send has ids and no result."""

    async def body() -> None:
        hook = Sends()
        async with cluster(hooks=[hook]) as (_, client), client.producer("pg") as producer:
            batch = await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            key = await producer.send_oneway("T", b"3")
        (_, first), (_, second), (_, third), (_, fourth) = hook.seen
        assert [message.body for message in first.messages] == [b"1", b"2"]
        assert (",".join(second.message_ids), second.result) == (batch.message_id, batch)
        assert (third.mode, fourth.message_ids, fourth.result, fourth.attempts) == (
            Mode.ONEWAY,
            (key,),
            None,
            1,
        )

    run(backend, body)


@on_both_backends
def test_a_hook_may_add_properties(backend: str) -> None:
    """Added properties are sent with the message, in a batch with each message; the application's object is
    not changed."""

    async def body() -> None:
        hook = Sends(before=lambda context: context.set_property("traceparent", "00-x"))
        message = Message("T", b"1", properties={"own": "y"})
        async with cluster(hooks=[hook]) as (_, client):
            async with client.producer("pg") as producer:
                await producer.send(message)
                await producer.send_batch([message, Message("T", b"2")])
            async with client.pull_consumer("cg") as consumer:
                found = []
                for queue in await consumer.queues("T"):
                    found += (await consumer.pull(queue, 0)).messages
        assert [each.properties["traceparent"] for each in found] == ["00-x"] * 3
        assert found[0].properties["own"] == "y"
        assert message.properties == {"own": "y"}

    run(backend, body)


@on_both_backends
def test_what_a_hook_does_wrong_changes_nothing(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Errors before and after the send, and invalid replacements of the messages, do not affect the message,
    the result or other hooks."""

    async def body() -> None:
        def break_it(context: Any) -> None:
            raise ValueError("boom")

        def lose_it(context: ClientSendContext) -> None:
            context.messages = []

        last = Sends()
        hooks = [Sends(before=break_it, after=break_it), Sends(before=lose_it), last]
        async with cluster(hooks=hooks) as (fake, client), client.producer("pg") as producer:
            assert (await producer.send("T", b"kept")).is_ok
            assert fake.brokers["broker-a"].log
        assert len(last.seen) == 2
        assert "client hook 'Sends' failed in before_send" in caplog.text
        assert "the original messages are sent" in caplog.text

    run(backend, body)


@on_both_backends
def test_a_forbidding_hook_stops_a_send(backend: str) -> None:
    """The hook is called before each attempt with queue and address; its error is raised to the application
    and no request is sent."""

    async def body() -> None:
        asked: list[CheckForbiddenContext] = []

        class NotThere(CheckForbiddenHook):
            def check_forbidden(self, context: CheckForbiddenContext) -> None:
                asked.append(context)
                if context.messages[0].tag == "secret":
                    raise PermissionError("not to this broker")

        hook = Sends()
        async with cluster(hooks=[NotThere(), hook]) as (fake, client), client.producer("pg") as producer:
            broker = fake.brokers["broker-a"]
            assert (await producer.send("T", b"x")).is_ok
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(PermissionError, match="not to this broker"):
                    await send("T", b"x", tag="secret")
            assert len(broker.server.seen(SEND)) == 1
        assert [(context.address, context.group, context.unit_mode) for context in asked] == [
            ("10.0.0.1:10911", "pg", False)
        ] * 3
        assert asked[0].queue.topic == "T"
        assert isinstance(hook.seen[3][1].error, PermissionError)

    run(backend, body)


@on_both_backends
def test_a_filter_takes_messages_out(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """The filter runs after the tag filter and before the application and the consume hooks; offsets skip
    removed messages, and it cannot add any."""

    async def body() -> None:
        class Even(FilterMessageHook):
            def filter_messages(self, context: FilterMessageContext) -> None:
                assert (context.group, context.queue.topic, context.unit_mode) == ("cg", "T", False)
                context.messages = [message for message in context.messages if int(message.body) % 2 == 0] * 2

        class Nonsense(FilterMessageHook):
            def filter_messages(self, context: FilterMessageContext) -> None:
                if int(context.messages[0].body) == 8:
                    context.messages = None  # type: ignore[assignment]

        consumed = Consumes()
        async with (
            cluster(hooks=[Even(), Nonsense(), consumed]) as (fake, client),
            client.pull_consumer("cg") as consumer,
        ):
            for number in range(9):
                fake.brokers["broker-a"].put("T", 0, b"%d" % number)
            queue = (await consumer.queues("T"))[0]
            result = await consumer.pull(queue, 0)
            assert [message.body for message in result.messages] == [b"0", b"2", b"4", b"6", b"8"]
            assert result.next_offset == 9
            assert [message.body for message in (await consumer.pull(queue, 8)).messages] == [b"8"]
        assert consumed.seen[0][1] == [b"0", b"2", b"4", b"6", b"8"]
        assert "the original messages are returned" in caplog.text

    run(backend, body)


@on_both_backends
def test_a_pull_is_consumed_at_once(backend: str) -> None:
    """The messages of a pull have one pair of calls; an empty pull has none."""

    async def body() -> None:
        hook = Consumes()
        async with (
            cluster(hooks=[hook], client_id="me") as (fake, client),
            client.pull_consumer("cg") as consumer,
        ):
            queue = (await consumer.queues("T"))[0]
            assert (await consumer.pull(queue, 0)).messages == ()
            for number in range(2):
                fake.brokers["broker-a"].put("T", 0, b"%d" % number)
            await consumer.pull(queue, 0)
        assert hook.seen == [
            ("before", [b"0", b"1"], ConsumeReturnType.SUCCESS),
            ("after", [b"0", b"1"], ConsumeReturnType.SUCCESS),
        ]
        (context,) = hook.contexts
        assert (context.client_id, context.group, context.queue, context.status) == (
            "me",
            "cg",
            queue,
            "CONSUME_SUCCESS",
        )
        assert context.pulled

    run(backend, body)


@on_both_backends
def test_call_hooks_see_every_request(backend: str) -> None:
    """Call hooks may add header fields; without an answer there is no second call; an error of the first
    prevents the call."""

    async def body() -> None:
        seen: list[tuple[str, int, int]] = []

        class Sign(CallHook):
            def before_call(self, request: Command, address: str) -> None:
                if request.code == RequestCode.GET_MAX_OFFSET:
                    raise ClientError("unsigned")
                request.fields()["Signature"] = "s"
                seen.append(("before", request.code, 0))

            def after_call(self, request: Command, response: Command, address: str) -> None:
                seen.append(("after", request.code, response.code))
                raise ValueError("boom")

        async with cluster(hooks=[Sign()]) as (fake, client), client.producer("pg") as producer:
            broker = fake.brokers["broker-a"]
            assert (await producer.send("T", b"x")).is_ok
            await producer.send_oneway("T", b"x")
            broker.overrides[SEND] = lambda command: None
            with pytest.raises(SendFailed):
                await producer.send("T", b"x", timeout_ms=10)
            queue = (await producer.queues("T"))[0]
            async with client.pull_consumer("cg") as consumer:
                with pytest.raises(ClientError, match="unsigned"):
                    await consumer.max_offset(queue)
            assert {request.fields().get("Signature") for request in broker.server.seen(SEND)} == {"s"}
        sends = [(when, code) for when, request, code in seen if request == SEND]
        assert sends[:3] == [("before", 0), ("after", 0), ("before", 0)]
        assert ("after", 0) not in sends[3:]
        assert broker.server.seen(RequestCode.GET_MAX_OFFSET) == []

    run(backend, body)


@on_both_backends
def test_the_life_of_a_hook(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Hooks are opened in order after the client and closed in reverse before it; a failure to close does not
    affect the others."""

    async def body() -> None:
        log: list[str] = []

        class Living(ClientHook):
            def __init__(self, name: str) -> None:
                self.name = name

            async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
                assert isinstance(client, Client)
                assert await client.admin.route("T") is not None
                self.client = client
                log.append(f"{self.name} opens")

            async def close(self) -> None:
                assert await self.client.admin.route("T") is not None
                log.append(f"{self.name} closes")
                if self.name == "b":
                    raise ValueError("boom")

        async with cluster(hooks=[Living("a"), Living("b")]):
            assert log == ["a opens", "b opens"]
        assert log[2:] == ["b closes", "a closes"]
        assert "client hook Living failed to close" in caplog.text

    run(backend, body)


@on_both_backends
def test_a_hook_that_cannot_open_keeps_the_client_closed(backend: str) -> None:
    """The hook's error is raised unchanged, and the hooks opened before it are closed."""

    async def body() -> None:
        closed: list[str] = []

        class Fine(ClientHook):
            async def close(self) -> None:
                closed.append("fine")

        class Broken(ClientHook):
            async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
                raise ClientError("no tracer")

            async def close(self) -> None:
                closed.append("broken")

        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            client = Client(NAMESRV, connect=network.connect, hooks=[Fine(), Broken()])
            with pytest.raises(ClientError, match="no tracer"):
                async with client:
                    raise AssertionError("it opened")
            with pytest.raises(ClientError, match="not open"):
                client.producer("pg")
        assert closed == ["fine"]

    run(backend, body)


def test_a_hook_that_hangs_does_not_keep_a_client_waiting_for_ever() -> None:
    """Opening and closing a hook have time limits; after a cancellation there is no time for closing."""

    async def body() -> None:
        class Hanging(ClientHook):
            async def close(self) -> None:
                await anyio.sleep_forever()

        class NeverThere(ClientHook):
            async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
                await anyio.sleep_forever()

        began_s = anyio.current_time()
        with pytest.raises(ExceptionGroup) as caught:
            async with cluster(hooks=[NeverThere()]):
                raise AssertionError("it opened")
        assert caught.group_contains(ClientError, match="client hook NeverThere did not open within 10 s")
        assert anyio.current_time() - began_s == 10.0
        began_s = anyio.current_time()
        async with cluster(hooks=[Hanging()]):
            pass
        assert anyio.current_time() - began_s == 5.0
        began_s = anyio.current_time()
        with anyio.move_on_after(1):
            async with cluster(hooks=[Hanging()]):
                await anyio.sleep_forever()
        assert anyio.current_time() - began_s == 1.0

    run("trio", body)


def test_what_is_no_hook_is_refused() -> None:
    """An invalid hook is refused with its name when the client is created."""

    class Late(ClientSendHook):
        async def before_send(self, context: ClientSendContext) -> None:  # type: ignore[override]
            raise AssertionError("never run")

    with pytest.raises(
        PluginError, match="client hook 'object' must be a ClientHook or CallHook, not object"
    ):
        Client(NAMESRV, hooks=[object()])  # type: ignore[list-item]
    with pytest.raises(PluginError, match="client hook 'Late': before_send is a coroutine function"):
        Client(NAMESRV, hooks=[Late()])


@define
class Ends(EndTransactionHook):
    """Records its arguments, and fails."""

    seen: list[EndTransactionContext] = Factory(list)

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.seen.append(context)
        raise LookupError("a hook's own problem")


@on_both_backends
def test_the_end_of_a_transaction_is_shown(backend: str) -> None:
    """Before each END_TRANSACTION, also before the answer to a broker's question, with the half message. An
    error of the hook changes nothing."""

    async def check(_half: object) -> bool:
        return True

    async def body() -> None:
        hook = Ends()
        async with (
            asking(hooks=[hook], client_id="me") as peer,
            peer.client.producer("pg", check=check) as producer,
        ):
            async with producer.transaction("T", b"order", keys=["k"]) as tx:
                await tx.rollback()
            assert await peer.asked(peer.half(KEYS="early")) == COMMIT
            assert [end.commit_or_rollback for end in await peer.ends()] == [ROLLBACK, COMMIT]
            own, early = hook.seen
            assert (own.client_id, own.group, own.from_check, own.state) == (
                "me",
                "pg",
                False,
                TransactionState.ROLLBACK,
            )
            assert isinstance(own.message, Message)
            assert (own.message_id, own.message.keys, own.address) == (
                tx.message_id,
                ("k",),
                peer.broker.address,
            )
            assert isinstance(early.message, ReceivedMessage)
            assert (early.message_id, early.transaction_id, early.from_check) == ("EARLIER", "TX", True)
            assert (early.message.keys, early.state) == (("early",), TransactionState.COMMIT)

    run(backend, body)
