"""Queues of Kombu over a broker in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from queue import Empty
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError

from rmqkit.client import BlockingClient
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from rmqkit_kombu import Transport
from rmqkit_kombu.transport import timer_of

WITHIN_S = 20


@contextmanager
def connected(rocketmq: ThreadedRocketMQ, path: str = "", **options: Any) -> Iterator[Any]:
    """A connection of Kombu to the servers of a test."""
    url = f"rocketmq://{rocketmq.namesrv_text}/{path}"
    with Connection(url, transport="rmqkit_kombu:Transport", transport_options=options) as connection:
        assert isinstance(connection.transport, Transport)
        yield connection


def take(connection: Any, *queues: Any, count: int, prefetch: int = 0) -> list[Any]:
    """The next messages of some queues, not acknowledged."""
    found: list[Any] = []
    with connection.Consumer(
        list(queues), callbacks=[lambda _body, message: found.append(message)], prefetch_count=prefetch
    ):
        while len(found) < count:
            connection.drain_events(timeout=WITHIN_S)
    return found


def test_messages_go_through_queues(rocketmq: ThreadedRocketMQ) -> None:
    """Objects and texts are sent, received, given back and acknowledged; then nothing is left."""
    with connected(rocketmq) as connection, connection.SimpleQueue("kombu.jobs@host") as queue:
        queue.put({"page": 1})
        first = queue.get(timeout=WITHIN_S)
        assert (first.payload, first.delivery_info["redelivered"]) == ({"page": 1}, False)
        first.requeue()
        again = queue.get(timeout=WITHIN_S)
        assert (again.payload, again.delivery_info["redelivered"]) == ({"page": 1}, True)
        queue.put("two")
        assert queue.get(timeout=WITHIN_S).payload == "two"
        again.ack()


def test_what_is_not_acknowledged_is_given_back(rocketmq: ThreadedRocketMQ) -> None:
    """Another connection has it as soon as the first one is closed, long before its lease ends; not as
    another attempt."""
    with connected(rocketmq) as second, second.SimpleQueue("jobs") as queue:
        with connected(rocketmq) as first:
            queue.put("done")
            queue.put("left")
            done, left = sorted(take(first, Queue("jobs"), count=2), key=lambda message: message.payload)
            done.ack()
            assert left.payload == "left"
        message = queue.get(timeout=WITHIN_S)
        assert (message.payload, message.delivery_info["redelivered"]) == ("left", False)
        message.ack()
        assert queue.qsize() == 0
        left.ack()
        left.channel.basic_reject(left.delivery_tag, requeue=True)
        assert queue.qsize() == 0


def test_a_lease_is_renewed(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """What takes much longer than a lease stays with its consumer."""
    with (
        connected(rocketmq, lease_ms=1000) as first,
        connected(rocketmq) as second,
        first.SimpleQueue("jobs") as queue,
        second.SimpleQueue("jobs") as other,
    ):
        queue.put("long")
        message = queue.get(timeout=WITHIN_S)
        with pytest.raises(Empty):
            other.get(timeout=3)
        message.ack()
    assert sum(each.lag for each in rocketmq_client.groups.progress("kombu-jobs").values()) == 0


def test_a_connection_that_is_gone_loses_its_leases(rocketmq: ThreadedRocketMQ) -> None:
    """A connection that renews nothing more has its messages delivered to others, as another attempt."""
    with (
        connected(rocketmq, lease_ms=1000) as first,
        connected(rocketmq) as second,
        second.SimpleQueue("jobs") as queue,
    ):
        queue.put("job")
        (message,) = take(first, Queue("jobs"), count=1)
        first.transport.session._renewing.cancel()
        again = queue.get(timeout=WITHIN_S)
        assert (again.payload, again.delivery_info["redelivered"]) == ("job", True)
        again.ack()
        message.ack()


def test_several_queues(rocketmq: ThreadedRocketMQ) -> None:
    """One consumer has the messages of several queues, and no more at a time than it wants."""
    queues = [Queue(name, Exchange("work"), routing_key=name) for name in ("fast", "slow")]
    with connected(rocketmq) as connection:
        producer = connection.Producer(serializer="json")
        for number in range(3):
            for queue in queues:
                producer.publish(
                    f"{queue.name} {number}",
                    exchange=queue.exchange,
                    routing_key=queue.routing_key,
                    declare=[queue],
                )
        seen: list[Any] = []

        def note(_body: object, message: Any) -> None:
            seen.append(message)

        with connection.Consumer(queues, callbacks=[note], prefetch_count=1):
            for count in range(1, 7):
                while len(seen) < count:
                    connection.drain_events(timeout=WITHIN_S)
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0.1)
                assert len(seen) == count
                seen[-1].ack()
        assert sorted(message.payload for message in seen) == sorted(
            f"{queue.name} {number}" for queue in queues for number in range(3)
        )


def test_a_queue_with_priorities(rocketmq: ThreadedRocketMQ) -> None:
    """`max_priority` makes a topic of the type PRIORITY; too high a priority is the highest."""
    queue = Queue("calls", max_priority=3)
    with connected(rocketmq) as connection:
        producer = connection.Producer()
        for priority in (0, 2, 9, None):
            producer.publish(str(priority), routing_key="calls", declare=[queue], priority=priority)
        messages = take(connection, queue, count=4)
        assert [message.payload for message in messages[:2]] == ["9", "2"]
        assert {message.payload for message in messages[2:]} == {"0", "None"}


def test_a_purge(rocketmq: ThreadedRocketMQ) -> None:
    """It tells how many messages it took; other queues keep theirs."""
    with (
        connected(rocketmq) as connection,
        connection.SimpleQueue("full") as full,
        connection.SimpleQueue("other") as other,
    ):
        for number in range(40):
            full.put(number)
        other.put("stays")
        assert full.qsize() == 40
        assert full.clear() == 40
        assert full.qsize() == 0
        assert other.get(timeout=WITHIN_S).payload == "stays"


def test_a_rejected_message_is_a_dead_letter(
    rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient
) -> None:
    """Also what something else has sent, which is not delivered."""
    with connected(rocketmq) as connection, connection.SimpleQueue("jobs") as queue:
        queue.put("bad")
        queue.get(timeout=WITHIN_S).reject()
        with rocketmq_client.producer("others") as producer:
            producer.send("jobs", b"no message of Kombu")
        with pytest.raises(Empty):
            queue.get(timeout=1)
        queue.put("good")
        assert queue.get(timeout=WITHIN_S).payload == "good"
        with rocketmq_client.lite_pull_consumer(
            "tests", subscribe="%DLQ%kombu-jobs", start="first"
        ) as consumer:
            dead = [message.body for message in islice(consumer, 2)]
        assert b"no message of Kombu" in dead
        assert len(dead) == 2


def test_without_acknowledgements(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """A consumer and a get with `no_ack` have finished what they were given."""
    with connected(rocketmq) as connection:
        queue = Queue("news")(connection.default_channel)
        queue.declare()
        producer = connection.Producer()
        producer.publish("one", routing_key="news")
        seen: list[str] = []
        with connection.Consumer([queue], callbacks=[lambda body, _: seen.append(body)], no_ack=True):
            while not seen:
                connection.drain_events(timeout=WITHIN_S)
        producer.publish("two", routing_key="news")
        seen.append(queue.get(no_ack=True).payload)
        assert seen == ["one", "two"]
        assert queue.get() is None
    assert sum(each.lag for each in rocketmq_client.groups.progress("kombu-news").values()) == 0


@pytest.mark.rocketmq(settings={"timerPrecisionMs": 100})
def test_an_eta_is_a_time_at_the_broker(rocketmq: ThreadedRocketMQ) -> None:
    """A task of Celery with a time comes then; without the option at once, for the worker to hold."""

    def received_after_s(connection: Any, at: datetime) -> float:
        began_s = time.monotonic()
        producer = connection.Producer()
        producer.publish("x", routing_key="tasks", declare=[Queue("tasks")], headers={"eta": at.isoformat()})
        (message,) = take(connection, Queue("tasks"), count=1)
        message.ack()
        return time.monotonic() - began_s

    with connected(rocketmq) as connection:
        assert received_after_s(connection, datetime.now(UTC) + timedelta(seconds=1)) > 0.9
        assert received_after_s(connection, datetime.now(UTC) - timedelta(seconds=1)) < 0.9
    with connected(rocketmq, eta_timers=False) as connection:
        assert received_after_s(connection, datetime.now(UTC) + timedelta(days=1)) < 10


@pytest.mark.parametrize(
    ("eta", "properties"),
    [
        (None, set()),
        ("soon", set()),
        ("2999-01-01T00:00:00", set()),
        ("1999-01-01T00:00:00+00:00", set()),
        ("2999-01-01T00:00:00+00:00", {"TIMER_DELAY_MS"}),
        ((datetime.now(UTC) + timedelta(days=1)).isoformat(), {"TIMER_DELIVER_MS"}),
    ],
    ids=["none", "no time", "no zone", "past", "too far ahead", "tomorrow"],
)
def test_what_an_eta_asks_for(eta: str | None, properties: set[str]) -> None:
    """A time without a zone, or in the past, is nothing for the broker; one too far ahead is as late as it
    keeps messages."""
    assert set(timer_of({"headers": {"eta": eta}})) == properties


def test_a_namespace(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """The path of the URL is one, and queues of different namespaces have nothing in common."""
    with connected(rocketmq, "shop") as connection, connection.SimpleQueue("jobs") as queue:
        queue.put("in the shop")
        assert queue.get(timeout=WITHIN_S).payload == "in the shop"
    assert "shop%jobs" in rocketmq_client.admin.topics()


@contextmanager
def listening(connection: Any, *queues: Any) -> Iterator[Callable[[int], list[str]]]:
    """Consume queues; the function that is yielded gives the next texts, sorted."""
    texts: list[str] = []

    def heard(count: int) -> list[str]:
        while len(texts) < count:
            connection.drain_events(timeout=WITHIN_S)
        found = sorted(texts)
        texts.clear()
        return found

    with connection.Consumer(list(queues), callbacks=[lambda body, _: texts.append(body)], no_ack=True):
        yield heard


def test_a_fanout_exchange(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """Every queue gets what is sent from its binding on, in whichever process, and each connection has its
    own copy; queues that are not kept need no topic for it."""
    news = Exchange("news", "fanout")
    paper, radio = Queue("paper", news, auto_delete=True), Queue("radio", news, auto_delete=True)
    with connected(rocketmq) as first, connected(rocketmq) as second, connected(rocketmq) as sender:
        say = sender.Producer(exchange=news, auto_declare=True).publish
        say("early")
        with listening(first, paper, radio) as of_both, listening(second, paper) as of_one:
            say("one")
            say("two")
            assert of_both(4) == ["one", "one", "two", "two"]
            assert of_one(2) == ["one", "two"]
            assert paper(first.default_channel).purge() == 0
    topics = rocketmq_client.admin.topics()
    assert "news%2Fbroadcast" in topics
    assert "paper" not in topics


def test_an_exchange_that_is_to_broadcast(rocketmq: ThreadedRocketMQ) -> None:
    """Bindings of topic and direct exchanges decide by the routing key, also of other processes."""
    keys, exact = Exchange("keys", "topic"), Exchange("exact", "direct")
    queues = [
        Queue("tasks", keys, routing_key="task.#", auto_delete=True),
        Queue("mine", exact, routing_key="me", auto_delete=True),
    ]
    options: dict[str, Any] = {"broadcast_exchanges": ["keys", "ex*"]}
    sent = ((keys, "worker.online"), (keys, "task.sent"), (exact, "you"), (exact, "me"))
    with (
        connected(rocketmq, **options) as receiver,
        connected(rocketmq, **options) as sender,
        listening(receiver, *queues) as heard,
    ):
        for exchange, key in sent:
            sender.Producer().publish(key, exchange=exchange, routing_key=key, declare=[exchange])
        assert heard(2) == ["me", "task.sent"]


def test_a_broker_that_comes_back(rocketmq: ThreadedRocketMQ) -> None:
    """What reads for the queues goes on where it was; nothing comes while the broker is away."""
    news = Exchange("news", "fanout")
    with (
        connected(rocketmq) as receiver,
        connected(rocketmq) as sender,
        listening(receiver, Queue("paper", news, auto_delete=True)) as heard,
    ):
        say = sender.Producer(exchange=news, auto_declare=True).publish
        say("before")
        assert heard(1) == ["before"]
        with rocketmq.away("broker-a"), pytest.raises(TimeoutError):
            receiver.drain_events(timeout=0.1)
        say("after")
        assert heard(1) == ["after"]


def test_a_queue_that_is_deleted_hears_no_more(rocketmq: ThreadedRocketMQ) -> None:
    """A purge drops what waits, and after the deletion another binding begins anew."""
    news = Exchange("news", "fanout")
    with connected(rocketmq) as connection:
        queue = Queue("paper", news, auto_delete=True)(connection.default_channel)
        queue.declare()
        say = connection.Producer(exchange=news).publish
        say("one")
        assert take(connection, queue, count=1)[0].payload == "one"
        queue.delete()
        say("unheard")
        queue.declare()
        say("two")
        (message,) = take(connection, queue, count=1)
        assert (message.payload, message.delivery_info["redelivered"]) == ("two", False)
        message.ack()
        message.channel.basic_reject(message.delivery_tag, requeue=True)
        assert queue.get() is None


def test_a_queue_that_is_not_kept(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """It gets its topic when it is consumed, as the queues for results of Celery are."""
    with connected(rocketmq) as connection:
        queue = Queue("results", auto_delete=True)(connection.default_channel)
        assert queue.queue_declare() == ("results", 0, 0)
        assert queue.purge() == 0
        assert "results" not in rocketmq_client.admin.topics()
        assert queue.get() is None
        connection.Producer().publish("x", routing_key="results")
        assert take(connection, queue, count=1)[0].payload == "x"


def test_exchanges_without_topics(rocketmq: ThreadedRocketMQ, caplog: pytest.LogCaptureFixture) -> None:
    """Where topics are not created, a binding is logged and nothing comes; the connection goes on."""
    news = Exchange("news", "fanout")
    with connected(rocketmq, create_topics=False) as connection:
        queue = Queue("paper", news, auto_delete=True)(connection.default_channel)
        queue.declare()
        assert "what other processes send to this exchange does not come" in caplog.text
        assert queue.get() is None


def test_topics_that_are_not_created(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """Without the option a declaration creates nothing."""
    with connected(rocketmq, create_topics=False) as connection:
        Queue("jobs")(connection.default_channel).declare()
    assert "jobs" not in rocketmq_client.admin.topics()


def test_a_server_that_cannot_be_reached(rocketmq: ThreadedRocketMQ) -> None:
    """A send fails as Kombu's users expect it, and succeeds when the server is there again."""
    with connected(rocketmq, client={"connect_timeout_ms": 200}) as connection:
        producer = connection.Producer()
        policy: dict[str, Any] = {"max_retries": 0, "interval_start": 0}
        send: Callable[[], object] = lambda: producer.publish(  # noqa: E731
            "x", routing_key="jobs", retry=True, retry_policy=policy
        )
        Queue("jobs")(connection.default_channel).declare()
        with rocketmq.away("broker-a"), pytest.raises(OperationalError):
            send()
        send()
        assert take(connection, Queue("jobs"), count=1)[0].payload == "x"
