"""Transactions of a producer: half messages, ends, and what is left after failures and cancellations."""

from __future__ import annotations

import zlib
from typing import Any

import anyio
import pytest

from rmqkit.client import (
    BrokerError,
    ClientError,
    Message,
    MessageIllegal,
    MessageQueue,
    NoRoute,
    SendFailed,
    TransactionState,
)
from rmqkit.client.hooks import ClientSendContext, ClientSendHook
from rmqkit.model import properties as props
from rmqkit.model.message_type import MessageType
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol import record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import SendMessageResponseHeader
from tests.client.fakes import on_both_backends, run
from tests.client.producing.transacting import COMMIT, ROLLBACK, UNKNOWN, asking

SEND = RequestCode.SEND_MESSAGE_V2


async def booked(_half: object) -> bool:
    return True


async def unused(_half: object) -> bool:
    raise AssertionError("nobody should ask the application")


@on_both_backends
@pytest.mark.row("S141", "S143", "S144")
def test_a_block_that_ends_commits(backend: str) -> None:
    """The half message has Java's properties; END_TRANSACTION names it by the group, both offsets and both
    ids, one way, when the block has ended."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            transaction = producer.transaction("T", b"order", tag="A", keys=["k"], properties={"a": "b"})
            assert transaction.state is None
            async with transaction as tx:
                (half,) = peer.halves()
                properties = props.decode(half.properties or "")
                assert properties == {
                    "TAGS": "A",
                    "KEYS": "k",
                    "a": "b",
                    "WAIT": "true",
                    "TRAN_MSG": "true",
                    "PGROUP": "pg",
                    "UNIQ_KEY": tx.message_id,
                }
                assert (half.producer_group, half.sys_flag, half.topic) == ("pg", 0, "T")
                assert tx.result.queue == MessageQueue("T", "broker-a", 0)
                assert await peer.ends() == []
            (end,) = await peer.ends()
            assert tx.state is TransactionState.COMMIT
            assert (end.producer_group, end.topic, end.bname) == ("pg", "T", "broker-a")
            assert (end.tran_state_table_offset, end.commit_log_offset) == (0, 0)
            assert (end.commit_or_rollback, end.from_transaction_check) == (COMMIT, False)
            assert (end.msg_id, end.transaction_id) == (tx.message_id, None)
            assert peer.broker.server.seen(RequestCode.END_TRANSACTION)[0].remark is None

    run(backend, body)


@on_both_backends
def test_the_places_are_those_of_the_half_message(backend: str) -> None:
    """The offset of the half queue, that of the log in the offset message id, and the transaction id are from
    the answer to the half message."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            header = SendMessageResponseHeader(
                msg_id="0A00000100002A9F0000000000ABCDEF", queue_id=0, queue_offset=41, transaction_id="TX"
            )
            peer.broker.overrides[SEND] = lambda command: answer(command, header=header)
            async with producer.transaction("T", b"order"):
                pass
            (end,) = await peer.ends()
            assert (end.tran_state_table_offset, end.commit_log_offset) == (41, 0xABCDEF)
            assert (end.msg_id, end.transaction_id) == (peer.ids()[0], "TX")

    run(backend, body)


@on_both_backends
def test_a_block_that_raises_rolls_back(backend: str) -> None:
    """The exception passes through, and the remark names its class, but not its text."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            transaction = producer.transaction("T", b"order")
            with pytest.raises(LookupError, match="secret"):
                async with transaction:
                    raise LookupError("secret")
            (end,) = await peer.ends()
            assert (end.commit_or_rollback, transaction.state) == (ROLLBACK, TransactionState.ROLLBACK)
            (command,) = peer.broker.server.seen(RequestCode.END_TRANSACTION)
            assert command.remark == "the block raised LookupError"
            assert await peer.asked(peer.stored()) == ROLLBACK

    run(backend, body)


@on_both_backends
def test_a_cancelled_block_is_unknown(backend: str) -> None:
    """Nothing is sent, and the check tells the outcome when the broker asks."""

    async def body() -> None:
        halves: list[str] = []

        async def check(half: Any) -> bool:
            halves.append(half.message_id)
            return True

        async with asking() as peer, peer.client.producer("pg", check=check) as producer:
            transaction = producer.transaction("T", b"order")
            with anyio.CancelScope() as scope:
                async with transaction:
                    scope.cancel()
                    await anyio.sleep_forever()
            assert transaction.state is TransactionState.UNKNOWN
            assert await peer.ends() == []
            assert await peer.asked(peer.stored()) == COMMIT
            assert halves == [transaction.message_id]

    run(backend, body)


@on_both_backends
def test_an_end_in_a_cancelled_scope_is_sent(backend: str) -> None:
    """A block that ends although its scope is cancelled has done its work: the transaction commits."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            with anyio.CancelScope() as scope:
                async with producer.transaction("T", b"order") as tx:
                    scope.cancel()
            assert tx.state is TransactionState.COMMIT
            assert [end.commit_or_rollback for end in await peer.ends()] == [COMMIT]

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize(("name", "code"), [("commit", COMMIT), ("rollback", ROLLBACK), ("unknown", UNKNOWN)])
def test_an_end_within_the_block(backend: str, name: str, code: int) -> None:
    """The transaction ends at once, and the end of the block changes nothing, even if it raises. A second end
    is an error that says how it ended."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            transaction = producer.transaction("T", b"order")
            with pytest.raises(ClientError, match="has not begun"):
                await transaction.commit()

            async def block() -> None:
                async with transaction as tx:
                    await getattr(tx, name)()
                    (end,) = await peer.ends()
                    assert end.commit_or_rollback == code
                    assert tx.state is not None
                    with pytest.raises(ClientError, match=f"has ended already: {tx.state.name}"):
                        await tx.rollback()
                    with pytest.raises(ClientError, match="has ended already"):
                        tx.settle_by(lambda: True)
                    raise LookupError

            with pytest.raises(LookupError):
                await block()
            assert len(await peer.ends()) == 1

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize(
    ("verdict", "code"),
    [(True, COMMIT), (False, ROLLBACK), (None, UNKNOWN), (TransactionState.COMMIT, COMMIT), (1, UNKNOWN)],
)
@pytest.mark.parametrize("failing", [False, True])
def test_a_function_decides_at_the_end(backend: str, verdict: Any, code: int, failing: bool) -> None:
    """Whether the block ends or raises. What is not a verdict is unknown."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=booked) as producer:

            async def decide() -> Any:
                assert await peer.ends() == []
                return verdict

            try:
                async with producer.transaction("T", b"order") as tx:
                    tx.settle_by(decide)
                    if failing:
                        raise LookupError
            except LookupError:
                assert failing
            (end,) = await peer.ends()
            assert end.commit_or_rollback == code

    run(backend, body)


@on_both_backends
def test_a_decision_that_is_cancelled_or_fails_is_unknown(backend: str) -> None:
    """The check of the producer is asked afterwards. A cancelled block does not ask the function."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=booked) as producer:

            async def fail() -> bool:
                raise LookupError("no database")

            async with producer.transaction("T", b"order") as tx:
                tx.settle_by(fail)
            assert tx.state is TransactionState.UNKNOWN
            assert await peer.asked(peer.stored()) == COMMIT
            with anyio.move_on_after(1) as scope:
                async with producer.transaction("T", b"order") as tx:
                    tx.settle_by(anyio.sleep_forever)
            assert scope.cancelled_caught
            assert tx.state is TransactionState.UNKNOWN
            with anyio.CancelScope() as scope:
                async with producer.transaction("T", b"order") as tx:
                    tx.settle_by(fail)
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
            assert tx.state is TransactionState.UNKNOWN

    run(backend, body)


@on_both_backends
def test_a_half_message_that_is_not_safe_is_rolled_back(backend: str) -> None:
    """After FLUSH_DISK_TIMEOUT and its like the block does not run, as in Java, also when sends are repeated
    after such answers."""

    async def body() -> None:
        async with (
            asking() as peer,
            peer.client.producer("pg", check=unused, retry_when_not_stored_everywhere=True) as producer,
        ):

            def weak(command: Command) -> Command:
                result = peer.broker.send(command)
                result.code = ResponseCode.SLAVE_NOT_AVAILABLE
                return result

            peer.broker.overrides[SEND] = weak
            transaction = producer.transaction("T", b"order")
            with pytest.raises(SendFailed, match="SLAVE_NOT_AVAILABLE"):
                async with transaction:
                    raise AssertionError("the block must not run")
            assert len(peer.halves()) == 1
            assert [end.commit_or_rollback for end in await peer.ends()] == [ROLLBACK]
            assert await peer.asked(peer.stored()) == ROLLBACK

    run(backend, body)


@on_both_backends
def test_each_attempt_has_an_id_of_its_own(backend: str) -> None:
    """The answer to the first attempt is lost, so its half message is stored. It is rolled back when the
    broker asks, although the transaction has committed: its message is delivered once."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=booked, timeout_ms=10_000) as producer:
            stored: list[bytes] = []

            def lose_first(command: Command) -> Command | None:
                result = peer.broker.send(command)
                stored.append(peer.stored())
                return result if len(stored) > 1 else None

            peer.broker.overrides[SEND] = lose_first
            transaction = producer.transaction("T", b"order")
            async with anyio.create_task_group() as group:
                group.start_soon(transaction.__aenter__)
                while not stored:
                    await anyio.lowlevel.checkpoint()
                await peer.broker.server.hang_up()
            first, second = peer.ids()
            assert first != second == transaction.message_id
            assert await peer.asked(stored[0]) == ROLLBACK
            assert await peer.asked(stored[1]) == UNKNOWN
            await transaction.__aexit__(None, None, None)
            assert await peer.asked(stored[0]) == ROLLBACK
            assert await peer.asked(stored[1]) == COMMIT

    run(backend, body)


@on_both_backends
def test_a_cancelled_begin_is_rolled_back(backend: str) -> None:
    """The half message may be stored, but the block has never run. The transaction cannot be begun again."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=booked) as producer:
            peer.broker.overrides[SEND] = lambda command: (peer.broker.send(command), None)[1]
            transaction = producer.transaction("T", b"order")
            with anyio.move_on_after(1) as scope:
                async with transaction:
                    raise AssertionError("the block must not run")
            assert scope.cancelled_caught
            with pytest.raises(ClientError, match="used once"):
                await transaction.__aenter__()
            with pytest.raises(ClientError, match="has not begun"):
                assert transaction.message_id
            assert await peer.asked(peer.stored()) == ROLLBACK

    run(backend, body)


@on_both_backends
def test_a_begin_that_fails_is_rolled_back(backend: str) -> None:
    """All attempts time out: the error lists them, and the half messages that may be stored are rolled
    back."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=booked, retries=0) as producer:
            peer.broker.overrides[SEND] = lambda command: (peer.broker.send(command), None)[1]
            with pytest.raises(SendFailed, match="attempt 1"):
                async with producer.transaction("T", b"order", timeout_ms=100):
                    raise AssertionError("the block must not run")
            assert await peer.asked(peer.stored()) == ROLLBACK
            peer.broker.overrides[SEND] = lambda command: answer(command, ResponseCode.MESSAGE_ILLEGAL, "no")
            with pytest.raises(BrokerError, match="MESSAGE_ILLEGAL"):
                async with producer.transaction("T", b"order"):
                    raise AssertionError("the block must not run")
            with pytest.raises(NoRoute):
                async with producer.transaction("Missing", b"order"):
                    raise AssertionError("the block must not run")

    run(backend, body)


@on_both_backends
def test_an_end_that_the_broker_does_not_hear(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """The broker is away when the block ends: the block succeeds, and the broker hears the outcome when it
    asks, without the check."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            async with producer.transaction("T", b"order") as tx:
                server = peer.fake.network.servers.pop(peer.broker.address)
                await peer.broker.server.hang_up()
                await anyio.sleep(1)
            assert tx.state is TransactionState.COMMIT
            assert "the broker does not hear how transaction" in caplog.text
            peer.fake.network.servers[peer.broker.address] = server
            await producer.send("T", b"another")
            assert await peer.asked(peer.broker.log["T", 0][0]) == COMMIT

    run(backend, body)


@on_both_backends
def test_an_end_without_a_master(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """While the broker has no master the end is logged; the new master asks."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            async with producer.transaction("T", b"order") as tx:
                peer.fake.without_master.add("broker-a")
                await anyio.sleep(40)
            assert tx.state is TransactionState.COMMIT
            assert "has no master now" in caplog.text
            assert await peer.ends() == []
            assert await peer.asked(peer.stored()) == COMMIT

    run(backend, body)


@on_both_backends
def test_a_large_body_is_compressed(backend: str) -> None:
    """As in sends; the half message has the flag of the compression."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            async with producer.transaction("T", b"x" * 10_000):
                pass
            (half,) = peer.halves()
            assert half.sys_flag & COMPRESSED
            assert zlib.decompress(record.unpack(peer.stored()).body) == b"x" * 10_000

    run(backend, body)


class Seen(ClientSendHook):
    """Keeps the contexts of sends."""

    def __init__(self) -> None:
        self.contexts: list[ClientSendContext] = []
        self.kinds: list[MessageType] = []

    def before_send(self, context: ClientSendContext) -> None:
        self.kinds.append(context.message_type)
        context.set_property("hook", "was here")

    def after_send(self, context: ClientSendContext) -> None:
        self.contexts.append(context)


def test_hooks_see_a_half_message() -> None:
    """Send hooks know that it is one, may add properties, and get the id of the attempt that succeeded."""

    async def body() -> None:
        seen = Seen()
        async with asking(hooks=[seen]) as peer, peer.client.producer("pg", check=unused) as producer:
            answers = [answer, None]

            def busy_first(command: Command) -> Command:
                if answers.pop(0) is not None:
                    return answer(command, ResponseCode.SYSTEM_BUSY, "busy")
                return peer.broker.send(command)

            peer.broker.overrides[SEND] = busy_first
            async with producer.transaction("T", b"order") as tx:
                pass
            assert seen.kinds == [MessageType.HALF]
            (context,) = seen.contexts
            assert context.message_ids == (tx.message_id,)
            assert [props.decode(half.properties or "")["hook"] for half in peer.halves()] == ["was here"] * 2
            assert len(set(peer.ids())) == 2

    run("trio", body)


def test_names_of_a_namespace() -> None:
    """The group and topic have the prefix at the broker, the application reads them without it."""

    async def body() -> None:
        seen: list[tuple[str, bytes]] = []

        async def check(half: Any) -> bool:
            seen.append((half.topic, half.body))
            return True

        async with asking(namespace="ns") as peer, peer.client.producer("pg", check=check) as producer:
            peer.fake.topics = {"ns%T": {"broker-a": 1}}
            async with producer.transaction("T", b"order") as tx:
                assert tx.result.queue == MessageQueue("T", "broker-a", 0)
                await tx.unknown()
            (half,) = peer.halves()
            assert (half.topic, props.decode(half.properties or "")["PGROUP"]) == ("ns%T", "ns%pg")
            assert await peer.asked(peer.stored()) == COMMIT
            assert seen == [("T", b"order")]
            assert [(end.topic, end.producer_group) for end in await peer.ends()] == [
                ("ns%T", "ns%pg"),
                ("RMQ_SYS_TRANS_HALF_TOPIC", "ns%pg"),
            ]

    run("trio", body)


REFUSED: list[tuple[Message, str]] = [
    (Message("T", b"x", delay_level=3), "has no delay"),
    (Message("T", b"x", properties={"TIMER_DELAY_MS": "5"}), "has no delay"),
    (Message("%RETRY%g", b"x"), "send to an ordinary topic"),
    (Message("%DLQ%g", b"x"), "send to an ordinary topic"),
    (Message("T", b"x", properties={"UNIQ_KEY": "mine"}), "use keys for an id of your own"),
    (Message("T", b"x", properties={"PGROUP": "other"}), "PGROUP"),
]


@pytest.mark.parametrize(("message", "text"), REFUSED)
def test_messages_that_cannot_be_transactions(message: Message, text: str) -> None:
    """The error says what to do instead, and nothing is sent."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            with pytest.raises(ClientError, match=text):
                producer.transaction(message)
            assert peer.halves() == []

    run("trio", body)


def test_misuse() -> None:
    """A transaction without a check, an empty body, a message in two forms and a producer that is not open
    are refused before anything is sent."""

    async def body() -> None:
        async with asking() as peer:
            async with peer.client.producer("pg") as producer:
                with pytest.raises(ClientError, match=r"client\.producer\('pg', check=\.\.\.\)"):
                    producer.transaction("T", b"x")
                with pytest.raises(MessageIllegal, match="empty"):
                    async with producer.transaction("T", b"", check=booked):
                        raise AssertionError("the block must not run")
                with pytest.raises(ClientError, match="a Message has its own"):
                    producer.transaction(Message("T", b"x"), b"y", check=booked)
            with pytest.raises(ClientError, match="not open"):
                async with producer.transaction("T", b"x", check=booked):
                    raise AssertionError("the block must not run")
            assert peer.halves() == []

    run("trio", body)


def test_orders_and_queues() -> None:
    """An ordering key and a queue choose where the half message goes, in one attempt."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=unused) as producer:
            peer.fake.topics["T"]["broker-a"] = 4
            queue = MessageQueue("T", "broker-a", 3)
            async with producer.transaction("T", b"x", queue=queue) as tx:
                assert tx.result.queue == queue
            for _ in range(2):
                async with producer.transaction("T", b"x", ordering_key="k"):
                    pass
            assert len({half.queue_id for half in peer.halves()[1:]}) == 1
            peer.broker.overrides[SEND] = lambda command: answer(command, ResponseCode.SYSTEM_BUSY, "busy")
            with pytest.raises(SendFailed):
                async with producer.transaction("T", b"x", ordering_key="k"):
                    raise AssertionError("the block must not run")
            assert len(peer.halves()) == 4

    run("trio", body)
