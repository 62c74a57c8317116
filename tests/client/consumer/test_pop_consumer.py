"""Pop consumers against rmqkit's broker: sharing, leases, retries, order, leaving, and leases by hand."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import (
    BrokerError,
    Client,
    ClientError,
    DeadLetter,
    Lease,
    Message,
    PopConsumer,
    ReceivedMessage,
    Retry,
    filter_class,
    sql,
    tag,
)
from rmqkit.client.cluster.dead_letter_views import Reason, reason
from rmqkit.client.consumer.lease_outcomes import POP_DELAYS_S
from rmqkit.client.consumer.leases import PATIENCE_S
from rmqkit.client.consumer.popping import Popper
from rmqkit.model.topic import CustomizedRetryPolicy, GroupRetryPolicy
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import PopMessageRequestHeader
from rmqkit.testing.clock import LoopClock
from rmqkit_pop.service import PopService
from tests.client.consumer.groups import Group, Line, group_of, until
from tests.client.consumer.test_push_consumer import Handled, dead_letters

SUBSCRIBED = {"T": "*"}


async def send(group: Group, *bodies: str, tag: str | None = None, key: str | None = None) -> None:
    for body in bodies:
        await group.producer.send(Message("T", body.encode(), tag=tag, ordering_key=key))


async def set_policy(group: Group, policy: GroupRetryPolicy) -> None:
    """Give the group of a consumer that runs a retry policy."""
    groups = group.cluster.broker.context.groups
    config = groups.get("g")
    assert config is not None
    await groups.put(msgspec.structs.replace(config, group_retry_policy=policy))


def leased(group: Group) -> int:
    """The leases that the broker has."""
    service = group.cluster.broker.context.registry.services["pop"]
    assert isinstance(service, PopService)
    found = service.figures()["popLeasedMessages"]
    assert isinstance(found, int)
    return found


def texts(leases: list[Lease]) -> list[str]:
    return sorted(lease.message.body.decode() for lease in leases)


class Slow(Handled):
    """Takes so many seconds for some messages."""

    def __init__(self, **seconds: float) -> None:
        super().__init__()
        self.ended: list[str] = []
        self._seconds = seconds

    async def __call__(self, message: ReceivedMessage) -> None:
        await super().__call__(message)
        body = message.body.decode()
        await trio.sleep(self._seconds.get(body, self._seconds.get("others", 0)))
        self.ended.append(body)


async def test_members_outnumber_queues(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Three members work at messages of one queue at a time, each message once; when all are acknowledged,
    nothing is leased any more."""
    async with group_of(tmp_path, queues=1) as group:
        handlers = [Slow(others=10) for _ in range(3)]
        await send(group, *map(str, range(12)))
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            consumers: list[PopConsumer] = []
            for number, handle in enumerate(handlers):
                client = await group.open_client(f"m{number}").start()
                nursery.start_soon(_closed_at_end, client)
                consumer = client.pop_consumer(
                    "g", subscribe=SUBSCRIBED, start="first", concurrency=2, prefetch=0
                )
                consumers.append(await consumer.start())
                nursery.start_soon(consumer.run, handle)
            await until(lambda: sum(len(each.ended) for each in handlers) == 12)
            assert trio.current_time() - began_s < 30
            assert all(handle.ended for handle in handlers)
            await until(lambda: leased(group) == 0)
            for consumer in consumers:
                await consumer.aclose()
            nursery.cancel_scope.cancel()
        assert Counter(body for each in handlers for body in each.bodies) == Counter(map(str, range(12)))


async def _closed_at_end(client: Client) -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


async def test_a_slow_message_holds_up_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What a busy member has leased ahead goes to an idle one within a second, not counted as an attempt; and
    what comes later does not wait for the slow one either."""
    async with group_of(tmp_path) as group, group.open_client("a") as one, group.open_client("b") as two:
        slow, quick = Slow(others=1_000), Handled()
        async with trio.open_nursery() as nursery:
            busy = one.pop_consumer("g", subscribe=SUBSCRIBED, start="first", concurrency=1, drain_s=0)
            async with busy:
                nursery.start_soon(busy.run, slow)
                await send(group, *map(str, range(10)))
                await until(lambda: len(slow.bodies) == 1)
                async with two.pop_consumer("g", subscribe=SUBSCRIBED) as idle:
                    nursery.start_soon(idle.run, quick)
                    began_s = trio.current_time()
                    await until(lambda: len(quick.bodies) == 9)
                    assert trio.current_time() - began_s < PATIENCE_S + 2
                    await send(group, "later")
                    await until(lambda: "later" in quick.bodies)
                    assert trio.current_time() - began_s < PATIENCE_S + 3
                    assert {each.reconsume_times for each in quick.messages} == {0}
            nursery.cancel_scope.cancel()


async def test_a_lease_is_renewed_while_its_handler_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    """For as long as it takes."""
    handle = Slow(slow=400)
    async with (
        group_of(tmp_path) as group,
        group.open_client("a") as client,
        client.pop_consumer("g", subscribe=SUBSCRIBED, start="first", lease_ms=5_000) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        await send(group, "slow", "quick")
        await until(lambda: handle.ended == ["quick", "slow"])
        await until(lambda: leased(group) == 0)
        nursery.cancel_scope.cancel()
    assert sorted(handle.bodies) == ["quick", "slow"]


async def test_what_a_lost_member_had_goes_to_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After its lease. The member that cannot renew it stops its handler when the lease ends."""
    async with group_of(tmp_path) as group, group.open_client("b") as other:
        line = Line(group.cluster.connect)
        async with Client(group.cluster.namesrv_text, connect=line.connect, client_id="10.0.0.1@a") as client:
            handle, second = Slow(others=1_000), Handled()
            async with trio.open_nursery() as nursery:
                lost = client.pop_consumer(
                    "g", subscribe=SUBSCRIBED, start="first", lease_ms=10_000, drain_s=0
                )
                async with lost:
                    nursery.start_soon(lost.run, handle)
                    await send(group, "x")
                    await until(lambda: handle.bodies == ["x"])
                    line.dead = True
                    await line.cut()
                    began_s = trio.current_time()
                    async with other.pop_consumer("g", subscribe=SUBSCRIBED) as consumer:
                        nursery.start_soon(consumer.run, second)
                        await until(lambda: second.bodies == ["x"])
                        assert 8 < trio.current_time() - began_s < 20
                        await until(lambda: leased(group) == 0)
                nursery.cancel_scope.cancel()
            assert handle.ended == []


async def test_failed_messages_come_again(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After the delays of Java's client, or that of `Retry`, while others are handled; a dead letter goes to
    the topic of dead letters at once, and so does what failed as often as `max_attempts` says."""
    caplog.set_level(logging.INFO, "rmqkit.client")
    wrong: dict[str, list[Exception]] = {
        "error": [OSError("no"), OSError("no")],
        "soon": [Retry(after=3)],
        "bad": [DeadLetter("never")],
        "often": [OSError("no") for _ in range(9)],
    }
    handle = Handled(wrong)
    expected = Counter(error=3, soon=2, bad=1, often=3, fine=1)
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        consumer = client.pop_consumer("g", subscribe=SUBSCRIBED, start="first", max_attempts=3)
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await send(group, *wrong, "fine")
            await until(lambda: Counter(handle.bodies) == expected)
            await until(lambda: leased(group) == 0)
            nursery.cancel_scope.cancel()
        times = {
            body: [round(at) for at, each in zip(handle.times, handle.bodies, strict=True) if each == body]
            for body in wrong
        }
        first, second, third = times["error"]
        assert second - first == POP_DELAYS_S[0]
        assert third - second == POP_DELAYS_S[1]
        assert times["soon"][1] - times["soon"][0] == 3
        counts = [each.reconsume_times for each in handle.messages if each.body == b"error"]
        assert counts == [0, 1, 2]
        assert {each.topic for each in handle.messages} == {"T"}
        dead = {each.body.decode(): reason(each) for each in await dead_letters(client, "g")}
        assert dead == {
            "bad": Reason(cause="asked", attempts=1, error="never"),
            "often": Reason(cause="attempts", attempts=3, error="OSError: no"),
        }
        assert "never" in caplog.text


@pytest.mark.parametrize("kind", ["push_consumer", "pop_consumer"])
async def test_the_policy_of_the_group_counts(tmp_path: Path, autojump_clock: MockClock, kind: str) -> None:
    """A broker with a retry policy says when a failed message comes."""
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=(1, 1, 2_000, 7_000)))
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        handle = Handled({"x": [OSError("no"), OSError("no")]})
        async with getattr(client, kind)("g", subscribe=SUBSCRIBED, start="first") as consumer:
            await set_policy(group, policy)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                await send(group, "x")
                await until(lambda: len(handle.bodies) == 3)
                nursery.cancel_scope.cancel()
        first, second, third = handle.times
        # Timers wait for the end of their second.
        assert 2 <= second - first < 3.5
        assert 7 <= third - second < 8.5


@pytest.mark.parametrize("kind", ["push_consumer", "pop_consumer"])
async def test_a_message_may_say_how_it_is_repeated(
    tmp_path: Path, autojump_clock: MockClock, kind: str
) -> None:
    """How often, and when; another one goes by its group."""
    own = {"RMQKIT_RETRY_TIMES": "2", "RMQKIT_RETRY_DELAYS": "2s,7s"}
    policy = GroupRetryPolicy.of_delays([30_000])
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        handle = Handled({"own": [OSError("no")] * 9, "other": [OSError("no")]})
        async with getattr(client, kind)("g", subscribe=SUBSCRIBED, start="first") as consumer:
            await set_policy(group, policy)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                await group.producer.send("T", b"own", properties=own)
                await send(group, "other")
                await until(lambda: handle.bodies.count("other") == 2)
                nursery.cancel_scope.cancel()
        times: dict[str, list[float]] = {"own": [], "other": []}
        for body, time_s in zip(handle.bodies, handle.times, strict=True):
            times[body].append(time_s)
        first, second, third = times["own"]
        # Timers wait for the end of their second.
        assert 2 <= second - first < 3.5
        assert 7 <= third - second < 8.5
        assert 30 <= times["other"][1] - times["other"][0] < 31.5
        assert [each.body for each in await dead_letters(client, "g")] == [b"own"]


async def test_messages_of_a_key_come_in_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Two members share the keys; a message that fails comes again before the next one of its key, and others
    do not wait."""
    async with group_of(tmp_path) as group, group.open_client("a") as one, group.open_client("b") as two:
        wrong: dict[str, list[Exception]] = {"a0": [OSError("no"), Retry(after=20)]}
        handle = Handled(wrong)
        for number in range(5):
            for key in "abc":
                await send(group, f"{key}{number}", key=key)
        async with (
            one.pop_consumer("g", subscribe=SUBSCRIBED, start="first", order="key") as first,
            two.pop_consumer("g", subscribe=SUBSCRIBED, start="first", order="key") as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(first.run, handle)
            nursery.start_soon(second.run, handle)
            await until(lambda: len(handle.bodies) == 17)
            await until(lambda: leased(group) == 0)
            nursery.cancel_scope.cancel()
        for key, expected in (("a", "000" + "1234"), ("b", "01234"), ("c", "01234")):
            assert "".join(body[1] for body in handle.bodies if body[0] == key) == expected
        counts = [each.reconsume_times for each in handle.messages if each.body == b"a0"]
        assert counts == [0, 1, 2]
        assert handle.bodies.index("b4") < handle.bodies.index("a1")


async def test_expressions_select_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    """By tags and by SQL92; a filter class is refused, for pops have none."""
    async with group_of(tmp_path, enablePropertyFilter=True) as group, group.open_client("a") as client:
        await send(group, "a", tag="A")
        await send(group, "b", tag="B")
        for wanted in (tag("B || C"), sql("TAGS = 'B'")):
            async with client.pop_consumer(
                f"g-{wanted.kind}", subscribe={"T": wanted}, start="first"
            ) as consumer:
                assert texts(await consumer.receive()) == ["b"]
        with pytest.raises(ClientError, match="filter class"):
            client.pop_consumer("g", subscribe={"T": filter_class("Cheap")})


async def test_iteration_and_batches(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Messages one by one, settled in a block or later; batches of several queues, of which some are
    finished and the others come again."""
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        await send(group, *map(str, range(8)))
        seen: list[str] = []
        async with client.pop_consumer("g", subscribe=SUBSCRIBED, start="first") as consumer:
            async for delivery in consumer:
                if len(seen) == 3:
                    assert await delivery.ack()
                    seen.append(delivery.message.body.decode())
                    break
                async with delivery as message:
                    seen.append(message.body.decode())
            async for batch in consumer.batches(4, linger_ms=50):
                async with batch as messages:
                    assert len(messages) == 4
                    batch.finish(*messages[:3])
                    seen += [each.body.decode() for each in messages[:3]]
                    rest = messages[3].body.decode()
                    raise Retry(after=5)
                break
            async for delivery in consumer:
                async with delivery as message:
                    assert (message.body.decode(), message.reconsume_times) == (rest, 1)
                    seen.append(rest)
                break
            await until(lambda: leased(group) == 0)
        assert sorted(seen) == sorted(map(str, range(8)))


async def test_leaving_gives_back_what_was_not_handled(tmp_path: Path, autojump_clock: MockClock) -> None:
    """At once, and without counting an attempt: what was leased ahead, what a cancelled handler had, and what
    a broker leases to a member that has just left."""
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        handle = Slow(others=1_000)
        async with trio.open_nursery() as nursery:
            async with client.pop_consumer(
                "g", subscribe=SUBSCRIBED, start="first", concurrency=1, drain_s=1
            ) as consumer:
                nursery.start_soon(consumer.run, handle)
                await send(group, "a", "b", "c")
                await until(lambda: len(handle.bodies) == 1)
            # The client is open still, and the broker may hold a pop of the consumer that has left.
            await send(group, "d")
            began_s = trio.current_time()
            async with client.pop_consumer("g", subscribe=SUBSCRIBED) as consumer:
                found: list[Lease] = []
                while len(found) < 4:
                    found += await consumer.receive()
                assert trio.current_time() - began_s < 2
                assert texts(found) == ["a", "b", "c", "d"]
                assert {each.message.reconsume_times for each in found} == {0}
                await consumer.ack(*found)
            assert leased(group) == 0
            nursery.cancel_scope.cancel()


async def test_leases_by_hand(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Acknowledged, they are gone; extended, nobody else gets them; released, they come again; and after
    their end they cannot be acknowledged."""
    async with (
        group_of(tmp_path) as group,
        group.open_client("a") as client,
        client.pop_consumer("g", subscribe=SUBSCRIBED, start="first") as consumer,
    ):
        began_s = trio.current_time()
        assert await consumer.receive(wait_ms=2_000) == []
        assert round(trio.current_time() - began_s) == 2
        await send(group, "a", "b", "c", "d")
        found = {each.message.body.decode(): each for each in await consumer.receive(lease_ms=5_000)}
        while len(found) < 4:
            found |= {each.message.body.decode(): each for each in await consumer.receive(lease_ms=5_000)}
        await consumer.ack(found["a"])
        await consumer.extend(found["b"], 30_000)
        await consumer.release(found["c"], after_ms=1_000)
        await consumer.dead_letter(found["d"], "unreadable")
        again = await consumer.receive(wait_ms=10_000, lease_ms=60_000)
        assert [(each.message.body, each.message.reconsume_times) for each in again] == [(b"c", 1)]
        await trio.sleep(20)
        assert await consumer.receive(wait_ms=1_000) == []
        await consumer.ack(found["b"], again[0])
        assert leased(group) == 0
        assert [each.body for each in await dead_letters(client, "g")] == [b"d"]

        await send(group, "late")
        (late,) = await consumer.receive(lease_ms=1_000)
        await trio.sleep(5)
        for settle in (consumer.ack, consumer.extend):
            with pytest.raises(BrokerError, match=r"late|lease"):
                await settle(late)
        (late,) = await consumer.receive()
        await consumer.ack(late)


@pytest.mark.parametrize("wrong_by_ms", [-3_600_000, 3_600_000])
async def test_the_clock_of_a_client_may_be_wrong(
    tmp_path: Path, autojump_clock: MockClock, wrong_by_ms: int
) -> None:
    """Brokers do not believe it: messages come, at once and to a receive that waits."""
    async with (
        group_of(tmp_path) as group,
        Client(
            group.cluster.namesrv_text,
            connect=group.cluster.connect,
            now_ms=lambda: LoopClock().now_ms() + wrong_by_ms,
        ) as client,
        client.pop_consumer("g", subscribe=SUBSCRIBED, start="first") as consumer,
    ):
        await send(group, "a")
        assert texts(await consumer.receive(wait_ms=0)) == ["a"]
        began_s = trio.current_time()
        assert await consumer.receive(wait_ms=5_000) == []
        assert round(trio.current_time() - began_s) == 5
        handle = Handled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(40)
            await send(group, "b")
            await until(lambda: handle.bodies == ["b"])
            consumer.stop()


async def test_a_broker_that_takes_pops_for_old_is_asked_once_a_second(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the log says why. Apache's brokers do so when the clocks differ by more than the wait."""
    asked: list[PopMessageRequestHeader] = []

    async def refusing(self: Popper, broker_name: str, command: Command, *_: object) -> tuple[str, Command]:
        asked.append(command.header(PopMessageRequestHeader))
        remark = "the broker[10.0.0.1] pop message is timeout too much"
        return "10.0.0.1:10911", answer(command, ResponseCode.POLLING_TIMEOUT, remark)

    async with (
        group_of(tmp_path) as group,
        group.open_client("a") as client,
        client.pop_consumer("g", subscribe=SUBSCRIBED) as consumer,
    ):
        monkeypatch.setattr(Popper, "_call", refusing)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, Handled())
            await trio.sleep(10)
            consumer.stop()
        assert 5 <= len(asked) <= 11
        assert "clock differs" in caplog.text
        assert await consumer.receive(wait_ms=0) == []
    tolerated_ms = {each.born_time + each.poll_time for each in asked[-1:]}
    assert all(at - LoopClock().now_ms() > 14_000 for at in tolerated_ms)


async def test_a_cancelled_receive_leases_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        group_of(tmp_path) as group,
        group.open_client("a") as client,
        client.pop_consumer("g", subscribe=SUBSCRIBED, start="first") as consumer,
    ):
        with trio.move_on_after(1) as scope:
            await consumer.receive()
        assert scope.cancelled_caught
        await send(group, "x")
        await trio.sleep(1)
        assert leased(group) == 0
        assert texts(await consumer.receive()) == ["x"]


async def test_a_topic_that_comes_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Both a handler and `receive` get its messages."""
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        handle = Handled()
        async with (
            client.pop_consumer("g", subscribe={"Later": "*"}, start="first") as consumer,
            client.pop_consumer("h", subscribe={"Later": "*"}, start="first") as by_hand,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            found: list[Lease] = []

            async def receive() -> None:
                found.extend(await by_hand.receive(wait_ms=60_000))

            nursery.start_soon(receive)
            await trio.sleep(5)
            await group.producer.send(Message("Later", b"x"))
            await until(lambda: handle.bodies == ["x"] and texts(found) == ["x"])
            nursery.cancel_scope.cancel()


async def test_a_group_that_may_not_consume_ends_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """In `run`, and in `receive`."""
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        consumer = client.pop_consumer("g", subscribe=SUBSCRIBED)
        async with consumer:
            groups = group.cluster.broker.context.groups
            config = groups.get("g")
            assert config is not None
            await groups.put(msgspec.structs.replace(config, consume_enable=False))
            with pytest.raises(BrokerError, match="consumeEnable"):
                await consumer.receive(wait_ms=1_000)
            with pytest.raises(BrokerError, match="consumeEnable"):
                await consumer.run(Handled())


async def test_wrong_settings(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with group_of(tmp_path) as group, group.open_client("a") as client:
        for wrong, match in (
            ({"lease_ms": 10}, "a lease lasts"),
            ({"prefetch": -1}, "prefetch=-1"),
            ({"order": "topic"}, "order='topic'"),
            ({"start": "middle"}, "start='middle'"),
            ({"concurrency": 0}, "concurrency=0"),
        ):
            with pytest.raises(ClientError, match=match):
                client.pop_consumer("g", subscribe=SUBSCRIBED, **wrong)
        async with client.pop_consumer("g", subscribe=SUBSCRIBED) as consumer:
            with pytest.raises(ClientError, match="at least one"):
                await consumer.receive(0)
            with pytest.raises(ClientError, match="a lease lasts"):
                await consumer.receive(lease_ms=1)
