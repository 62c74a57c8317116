"""Answers to brokers that ask for the outcome of transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit import limits
from rmqkit.client import ReceivedMessage, TransactionState, codecs
from rmqkit.client.producing import checks
from rmqkit.client.producing.checks import Bounded
from rmqkit.model.subscription import HeartbeatData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import answer
from tests.client.fakes import on_both_backends, run, settled
from tests.client.producing.transacting import COMMIT, ROLLBACK, UNKNOWN, Asking, asking


@given(st.lists(st.integers(0, 9)))
def test_a_bounded_table_keeps_the_newest(keys: list[int]) -> None:
    """It never has more entries than it may, and has those that came last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "MAX_REMEMBERED_TRANSACTIONS", 4)
        table: Bounded[int] = Bounded()
        expected: dict[str, int] = {}
        for value, key in enumerate(keys):
            table[str(key)] = expected[str(key)] = value
            if len(expected) > 4:
                del expected[next(iter(expected))]
        assert table == expected


class Loud:
    """Texts in capital letters."""

    content_type = "text/loud"

    def encode(self, value: str, /) -> bytes:
        return value.encode()

    def decode(self, body: bytes, /) -> str:
        return body.decode().upper()


@on_both_backends
@pytest.mark.parametrize(
    ("codec", "value", "fault"),
    [(Loud(), "EARLIER", None), (codecs.json(int), None, "application/json expected: DecodeError: ")],
    ids=["decoded", "undecodable"],
)
def test_a_check_gets_the_value_of_a_producer_with_a_codec(
    backend: str, codec: Any, value: str | None, fault: str | None
) -> None:
    """Or the fault of a body that the codec cannot decode."""
    seen: list[ReceivedMessage] = []

    def check(half: ReceivedMessage) -> bool:
        seen.append(half)
        return True

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=check, codec=codec):
            await peer.arrived(RequestCode.HEART_BEAT)
            assert await peer.asked(peer.half()) == COMMIT

    run(backend, body)
    (half,) = seen
    assert half.value == value
    assert (half.fault or "").startswith(fault or "")
    assert (half.fault is None) is (fault is None)


async def later(verdict: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return verdict


VERDICTS: list[tuple[Any, int]] = [
    (lambda half: True, COMMIT),
    (lambda half: False, ROLLBACK),
    (lambda half: None, UNKNOWN),
    (lambda half: TransactionState.ROLLBACK, ROLLBACK),
    (lambda half: later(True), COMMIT),
    (lambda half: "yes", UNKNOWN),
    (lambda half: 1 / 0, UNKNOWN),
]


@on_both_backends
@pytest.mark.row("S158")
@pytest.mark.parametrize(("check", "code"), VERDICTS)
@pytest.mark.parametrize("coroutine", [False, True])
def test_the_check_is_asked_about_an_earlier_process(
    backend: str, check: Callable[[Any], Any], code: int, coroutine: bool
) -> None:
    """A plain function runs in a thread, `async def` in the loop. The answer is END_TRANSACTION, one way,
    with the fields of the question, from a check."""

    async def body() -> None:
        loop = threading.current_thread()
        seen: list[tuple[ReceivedMessage, bool]] = []

        def plain(half: ReceivedMessage) -> Any:
            seen.append((half, threading.current_thread() is loop))
            return check(half)

        async def in_loop(half: ReceivedMessage) -> Any:
            result = plain(half)
            return await result if hasattr(result, "__await__") else result

        used: Any = in_loop if coroutine else plain
        async with asking() as peer, peer.client.producer("pg", check=used):
            await peer.arrived(RequestCode.HEART_BEAT)
            await peer.ask(peer.half(KEYS="order-7"))
            await peer.arrived(RequestCode.END_TRANSACTION)
            (end,) = await peer.ends()
            assert (end.producer_group, end.topic, end.bname) == (
                "pg",
                "RMQ_SYS_TRANS_HALF_TOPIC",
                "broker-a",
            )
            assert (end.tran_state_table_offset, end.commit_log_offset) == (5, 77)
            assert (end.commit_or_rollback, end.from_transaction_check) == (code, True)
            assert (end.msg_id, end.transaction_id) == ("EARLIER", "TX")
            ((half, in_loop_thread),) = seen
            assert (half.body, half.keys, half.topic) == (b"earlier", ("order-7",), "T")
            assert in_loop_thread is coroutine

    run(backend, body)


@on_both_backends
def test_every_broker_of_the_cluster_can_ask(backend: str) -> None:
    """A producer with a check sends heartbeats to all brokers before its first message, also to those of
    other topics, and to those that come later. Without one it sends none."""

    async def body() -> None:
        async with asking("ab") as peer:
            async with peer.client.producer("plain"):
                await two_heartbeats()
                assert all(not broker.server.requests for broker in peer.fake.brokers.values())
            async with peer.client.producer("pg", check=lambda half: True):
                for broker in peer.fake.brokers.values():
                    await broker.server.await_requests(1)
                assert all(groups_at(peer, name) == ["pg"] for name in peer.fake.brokers)
            for broker in peer.fake.brokers.values():
                assert broker.server.seen(RequestCode.UNREGISTER_CLIENT)

    run(backend, body)


async def two_heartbeats() -> None:
    """Let the clock of the test, which jumps, pass the times of two heartbeats."""
    with anyio.move_on_after(65):
        await anyio.Event().wait()


def groups_at(peer: Asking, name: str) -> list[str]:
    """The producer groups of the last heartbeat to a broker."""
    beats = peer.fake.brokers[name].server.seen(RequestCode.HEART_BEAT)
    data = msgspec.json.decode(beats[-1].body, type=HeartbeatData)
    return [producer.group_name for producer in data.producer_data_set or []]


@on_both_backends
def test_name_servers_that_are_away_when_a_producer_opens(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening succeeds; the brokers are found once a name server answers."""

    async def body() -> None:
        async with asking() as peer:
            refusing = lambda command: answer(command, ResponseCode.SYSTEM_BUSY, "busy")  # noqa: E731
            peer.fake.overrides[RequestCode.GET_BROKER_CLUSTER_INFO] = refusing
            async with peer.client.producer("pg", check=lambda half: True):
                await settled()
                assert "the brokers of the cluster could not be found" in caplog.text
                assert peer.broker.server.requests == []
                del peer.fake.overrides[RequestCode.GET_BROKER_CLUSTER_INFO]
                await peer.arrived(RequestCode.HEART_BEAT)
                assert groups_at(peer, "broker-a") == ["pg"]

    run(backend, body)


@on_both_backends
def test_a_running_block_is_unknown(backend: str) -> None:
    """The check is not asked, because it would not find what the block has not done yet, and the message
    would be rolled back before the block ends."""

    async def body() -> None:
        async def check(_half: object) -> bool:
            return False

        async with asking() as peer, peer.client.producer("pg", check=check) as producer:
            async with producer.transaction("T", b"order"):
                assert await peer.asked(peer.stored()) == UNKNOWN
            assert await peer.asked(peer.stored()) == COMMIT

    run(backend, body)


@on_both_backends
def test_a_transaction_has_a_check_of_its_own(backend: str) -> None:
    """It answers for that transaction alone, after an unknown end; others are unknown, and the log says how
    to answer for them."""

    async def body() -> None:
        caught: list[str] = []

        async def own(half: ReceivedMessage) -> bool:
            caught.append(half.message_id)
            return True

        async with asking() as peer, peer.client.producer("pg") as producer:
            async with producer.transaction("T", b"order", check=own) as tx:
                await tx.unknown()
            mine = peer.stored()
            assert await peer.asked(peer.half()) == UNKNOWN
            assert await peer.asked(mine) == COMMIT
            assert await peer.asked(mine) == COMMIT
            assert caught == [tx.message_id] * 2

    run(backend, body)


def test_a_transaction_nobody_can_tell_about(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the remedy."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg") as producer:
            async with producer.transaction("T", b"order", check=lambda half: True):
                pass
            assert await peer.asked(peer.half()) == UNKNOWN
            assert "client.producer(group, check=...)" in caplog.text

    run("trio", body)


@on_both_backends
def test_a_failing_check_is_logged_once(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """For each transaction, with its traceback, however often the broker asks."""

    async def body() -> None:
        async def check(_half: object) -> bool:
            raise LookupError("the database is away")

        async with asking() as peer, peer.client.producer("pg", check=check):
            await peer.arrived(RequestCode.HEART_BEAT)
            for message_id in ("A", "B", "A", "A"):
                assert await peer.asked(peer.half(message_id=message_id)) == UNKNOWN

    run(backend, body)
    errors = [each for each in caplog.records if each.exc_info]
    assert [each.args[0] for each in errors if isinstance(each.args, tuple)] == ["A", "B"]


@on_both_backends
def test_questions_for_the_same_transaction(backend: str) -> None:
    """While a transaction is being checked, further questions for it stay unanswered; later ones are
    answered."""

    async def body() -> None:
        gate, count = anyio.Event(), 0

        async def check(_half: object) -> bool:
            nonlocal count
            count += 1
            await gate.wait()
            return True

        async with asking() as peer, peer.client.producer("pg", check=check):
            await peer.arrived(RequestCode.HEART_BEAT)
            half = peer.half()
            for _ in range(3):
                await peer.ask(half)
            gate.set()
            assert len(await peer.ends()) == 1
            assert await peer.asked(half) == COMMIT
            assert count == 2

    run(backend, body)


@on_both_backends
def test_the_checks_at_a_time_have_a_limit(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So many are asked at a time, more wait, and one too many is left for the next round."""
    monkeypatch.setattr(checks, "MAX_WAITING_CHECKS", 12)

    async def body() -> None:
        gate, running = anyio.Event(), 0

        async def check(_half: object) -> bool:
            nonlocal running
            running += 1
            await gate.wait()
            return True

        async with asking() as peer, peer.client.producer("pg", check=check):
            await peer.arrived(RequestCode.HEART_BEAT)
            for number in range(13):
                await peer.ask(peer.half(message_id=f"M{number}"))
            assert running == limits.MAX_CHECKS_AT_A_TIME
            assert "M12" in caplog.text
            gate.set()
            assert sorted(end.msg_id or "" for end in await peer.ends()) == sorted(f"M{n}" for n in range(12))

    run(backend, body)


@on_both_backends
def test_a_two_way_question_is_answered(backend: str) -> None:
    """Besides END_TRANSACTION, which tells the outcome."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=lambda half: True):
            await peer.arrived(RequestCode.HEART_BEAT)
            await peer.ask(peer.half(), oneway=False)
            await peer.arrived(ResponseCode.SUCCESS)
            assert [said.code for said in peer.answers()] == [0]
            assert [end.commit_or_rollback for end in await peer.ends()] == [COMMIT]

    run(backend, body)


@on_both_backends
def test_bad_questions(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged half message, one without its group, and a question without its offsets are logged, and the
    next question is answered."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("pg", check=lambda half: None):
            await peer.arrived(RequestCode.HEART_BEAT)
            half = peer.half()
            for bad in (b"", b"half", half[:-5], half + half, peer.half(group="other")):
                await peer.ask(bad)
            await peer.ask(half, commit_log_offset=2**80)
            await settled()
            assert await peer.ends() == []
            assert "half message of a question" in caplog.text
            await peer.ask(half)
            await peer.arrived(RequestCode.END_TRANSACTION)

    run(backend, body)


@on_both_backends
def test_a_closed_producer_is_not_asked(backend: str) -> None:
    """After `aclose` the group is unknown to the client."""

    async def body() -> None:
        async with asking() as peer, peer.client.producer("other") as other:
            async with peer.client.producer("pg", check=lambda half: True):
                await peer.arrived(RequestCode.HEART_BEAT)
            await other.send("T", b"x")
            await peer.ask(peer.half())
            assert await peer.ends() == []

    run(backend, body)
