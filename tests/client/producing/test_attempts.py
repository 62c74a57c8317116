"""The attempts of one send: number, time limit, brokers and result (behaviour sheet, A7)."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from rmqkit.client import (
    BrokerError,
    BrokerUnknown,
    ConnectFailed,
    MessageQueue,
    NameServersUnreachable,
    NoRoute,
    ProducerOptions,
    SendFailed,
    SendStatus,
)
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    GetRouteInfoRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tests.client.fake_cluster import FakeCluster, cluster
from tests.client.fakes import on_both_backends, run, settled

SEND = RequestCode.SEND_MESSAGE_V2


def on_every_broker(fake: FakeCluster, reaction: Any) -> list[str]:
    """Let all brokers react to sends in this way; returns the names of the brokers in the order of the
    sends."""
    tried: list[str] = []

    def react(name: str) -> Any:
        def note(command: Command) -> Any:
            tried.append(name)
            return reaction(command)

        return note

    for name, broker in fake.brokers.items():
        broker.overrides[SEND] = react(name)
    return tried


def busy(command: Command) -> Command:
    return answer(command, ResponseCode.SYSTEM_BUSY, "wait")


def silent(command: Command) -> None:
    return None


def test_defaults() -> None:
    """Defaults are two retries, three seconds for all attempts, and another broker after a late flush only on
    request."""
    options = ProducerOptions()
    assert (options.retries, options.timeout_ms, options.retry_when_not_stored_everywhere) == (2, 3000, False)


@on_both_backends
def test_a_broker_that_is_no_longer_master_has_the_routes_fetched_again(backend: str) -> None:
    """After SERVICE_NOT_AVAILABLE, which a broker answers that a failover made a slave, the routes are
    fetched without waiting for the interval, and the send goes to the new master."""

    async def body() -> None:
        topics = {"T": {"broker-a": 2}}
        async with (
            cluster("ab", topics, poll_name_server_interval_ms=3_600_000) as (fake, client),
            client.producer("pg", timeout_ms=60_000) as producer,
        ):

            def fail_over(command: Command) -> Command:
                fake.topics["T"] = {"broker-b": 2}
                return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, "it is a slave")

            tried = on_every_broker(fake, fail_over)
            del fake.brokers["broker-b"].overrides[SEND]
            result = await producer.send("T", b"body")
            assert tried == ["broker-a"]
            assert result.queue.broker_name == "broker-b"

    run(backend, body)


@pytest.mark.row("S135", "S137", "S352")
@on_both_backends
@pytest.mark.parametrize(("given", "attempts"), [({}, 3), ({"retries": 0}, 1), ({"retries": 4}, 5)])
def test_a_send_is_tried_once_and_then_as_often_as_retries_say(
    backend: str, given: dict[str, Any], attempts: int
) -> None:
    """A send is tried 1 + `retries` times, by default 1 + 2."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg", **given) as producer:
            tried = on_every_broker(fake, busy)
            with pytest.raises(SendFailed):
                await producer.send("T", b"x")
            assert len(tried) == attempts

    run(backend, body)


@pytest.mark.row("S352")
@on_both_backends
def test_a_chosen_queue_and_a_one_way_send_get_one_attempt(backend: str) -> None:
    """A send to a chosen queue has no alternative, and the failure of a one-way send is unknown."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            tried = on_every_broker(fake, busy)
            with pytest.raises(SendFailed):
                await producer.send("T", b"x", queue=MessageQueue("T", "broker-b", 1))
            assert tried == ["broker-b"]
            for broker in fake.brokers.values():
                del fake.network.servers[broker.address]
                await broker.server.hang_up()
            # The client must have noticed the disconnect; until then its connections count as open.
            await anyio.wait_all_tasks_blocked()
            before = len(fake.network.connects)
            with pytest.raises(ConnectFailed):
                await producer.send_oneway("T", b"x")
            assert len(fake.network.connects) == before + 1

    run(backend, body)


@pytest.mark.row("S136", "S137", "S355")
@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY])
def test_three_seconds_are_all_there_is(code: int) -> None:
    """Each attempt gets the rest of the 3000 ms, and so does the resend after GO_AWAY; after that there is no
    further attempt, whatever the number."""

    async def slowly(command: Command) -> Command:
        await anyio.sleep(1.6)
        return answer(command, code)

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            await producer.queues("T")
            tried = on_every_broker(fake, slowly)
            began_s = anyio.current_time()
            with pytest.raises(SendFailed, match="the 3000 ms for the send are used up") as caught:
                await producer.send("T", b"x")
            assert anyio.current_time() - began_s == pytest.approx(3.0, abs=0.01)
            assert len(tried) == 2
            assert "within 1400 ms" in str(caught.value)

    run("trio", body)


@pytest.mark.row("S134", "S353")
@on_both_backends
def test_the_error_names_the_brokers_in_the_order_they_were_tried(backend: str) -> None:
    """No broker is tried twice in a row while there is another."""

    async def body() -> None:
        async with cluster("abc") as (fake, client), client.producer("pg") as producer:
            tried = on_every_broker(fake, busy)
            with pytest.raises(SendFailed) as caught:
                await producer.send("T", b"x")
            assert re.findall(r"attempt \d: (broker-\w)", str(caught.value)) == tried
            assert len(tried) == 3
            assert tried[0] != tried[1] != tried[2]

    run(backend, body)


@pytest.mark.row("S354")
@on_both_backends
def test_a_resend_names_the_topic_with_its_namespace(backend: str) -> None:
    """Each attempt is the same message with the same id, to the topic in its namespace; only queue and broker
    change."""

    async def body() -> None:
        topics = {"shop%T": {"broker-a": 1, "broker-b": 1}, "T": {"broker-a": 1, "broker-b": 1}}
        async with cluster("ab", topics) as (fake, client), client.producer("shop%pg") as producer:
            seen: list[SendMessageRequestHeaderV2] = []

            def refuse(command: Command) -> Command:
                seen.append(command.header(SendMessageRequestHeaderV2))
                return busy(command)

            tried = on_every_broker(fake, refuse)
            with pytest.raises(SendFailed, match="'shop%T'"):
                await producer.send("shop%T", b"x")
            assert len(tried) == 3
            assert [header.bname for header in seen] == tried
            assert {(header.topic, header.producer_group) for header in seen} == {("shop%T", "shop%pg")}
            assert len({header.properties for header in seen}) == 1

    run(backend, body)


@pytest.mark.row("S357")
@on_both_backends
def test_another_broker_may_flush_in_time(backend: str) -> None:
    """By default a late flush is the result at once; with the option, the success of the next broker replaces
    it."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            late = SendMessageResponseHeader(msg_id="0A", queue_id=0, queue_offset=5)
            answers = iter(
                [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SUCCESS]
            )
            tried = on_every_broker(fake, lambda command: answer(command, next(answers), header=late))
            async with client.producer("pg") as producer:
                assert (await producer.send("T", b"x")).status is SendStatus.FLUSH_DISK_TIMEOUT
                assert len(tried) == 1
            async with client.producer("other", retry_when_not_stored_everywhere=True) as producer:
                assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
                assert len(tried) == 3
                assert tried[1] != tried[2]

    run(backend, body)


@pytest.mark.row("S360")
@on_both_backends
def test_an_earlier_result_counts_more_than_a_later_refusal(backend: str) -> None:
    """The first result is returned instead of a later refusal, because the message is already stored."""

    async def body() -> None:
        async with (
            cluster("ab") as (fake, client),
            client.producer("pg", retry_when_not_stored_everywhere=True) as producer,
        ):
            late = SendMessageResponseHeader(msg_id="0A", queue_id=0, queue_offset=5)
            answers = iter([(ResponseCode.FLUSH_SLAVE_TIMEOUT, late), (ResponseCode.MESSAGE_ILLEGAL, None)])

            def react(command: Command) -> Command:
                code, header = next(answers)
                return answer(command, code, header=header)

            tried = on_every_broker(fake, react)
            assert (await producer.send("T", b"x")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert len(tried) == 2

    run(backend, body)


@pytest.mark.row("S358")
@on_both_backends
def test_a_broker_that_no_route_names_is_passed_over(backend: str) -> None:
    """If the order configuration lists a broker that no longer exists, the next attempt uses another one."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            fake.order["T"] = "broker-gone:1;broker-b:1"
            for _ in range(4):
                assert (await producer.send("T", b"x")).queue.broker_name == "broker-b"
            with pytest.raises(SendFailed, match="'broker-gone' has no master") as caught:
                await producer.send("T", b"x", queue=MessageQueue("T", "broker-gone", 0))
            assert isinstance(caught.value.__cause__, BrokerUnknown)

    run(backend, body)


@pytest.mark.row("S361")
@on_both_backends
def test_a_cancelled_send_is_not_tried_again(backend: str) -> None:
    """Cancellation ends the attempt in progress, and there is no further one."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            under_way = anyio.Event()
            tried = on_every_broker(fake, lambda command: under_way.set())
            async with anyio.create_task_group() as group:
                group.start_soon(producer.send, "T", b"x")
                await under_way.wait()
                group.cancel_scope.cancel()
            await settled()
            assert len(tried) == 1

    run(backend, body)


@pytest.mark.row("S362")
@on_both_backends
@pytest.mark.parametrize(
    ("fault", "code"),
    [("refused", ResponseCode.SYSTEM_BUSY), ("down", 10001), ("silent", 10002), ("unknown", 10003)],
)
def test_the_code_of_the_last_failure_is_the_code_of_the_send(backend: str, fault: str, code: int) -> None:
    """The error has the broker's code, or 10001 for no connection, 10002 for no answer in time, 10003 for an
    unknown broker."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            if fault == "unknown":
                fake.order["T"] = "broker-gone:2"
            await producer.queues("T")
            on_every_broker(fake, busy if fault == "refused" else silent)
            if fault == "down":
                for broker in fake.brokers.values():
                    del fake.network.servers[broker.address]
            with pytest.raises(SendFailed) as caught:
                await producer.send("T", b"x", timeout_ms=30 if fault in ("silent", "down") else None)
            assert caught.value.code == code

    run(backend, body)


@pytest.mark.row("S363")
@on_both_backends
def test_without_a_route_nothing_is_tried(backend: str) -> None:
    """The topic is looked up, then the template; the code is 10005 if no broker has either, 10004 if no name
    server answers."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("pg") as producer:
            with pytest.raises(NoRoute) as missing:
                await producer.send("Missing", b"x")
            assert missing.value.code == 10005
            asked = [
                command.header(GetRouteInfoRequestHeader).topic
                for command in fake.namesrv.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            ]
            assert asked == ["Missing", "TBW102"]
            assert fake.brokers["broker-a"].server.seen(SEND) == []
            fake.network.servers.clear()
            await fake.namesrv.hang_up()
            with pytest.raises(NameServersUnreachable) as unreachable:
                await producer.send("Missing", b"x")
            assert unreachable.value.code == 10004

    run(backend, body)


@pytest.mark.row("S359", "S360")
@on_both_backends
@pytest.mark.parametrize("code", [3, 13, 15, 26, 29, 604, 4711])
def test_codes_beside_the_eight_are_not_tried_again(backend: str, code: int) -> None:
    """Other codes are raised by the first attempt."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg") as producer:
            tried = on_every_broker(fake, lambda command: answer(command, code, "no"))
            with pytest.raises(BrokerError) as caught:
                await producer.send("T", b"x")
            assert (caught.value.code, len(tried)) == (code, 1)

    run(backend, body)
