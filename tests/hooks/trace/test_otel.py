"""Spans, collected by OpenTelemetry's own SDK."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rmqkit.client import Message, SendFailed
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import answer
from rmqkit_hook_trace.attributes import OPT_IN, Attribute, Names
from rmqkit_hook_trace.otel import OpenTelemetryHook
from tests.client.fake_cluster import cluster, serve_group
from tests.client.fakes import on_both_backends, run

ONE_QUEUE = {"T": {"broker-a": 1}}
OLD = Names({})


class Spans:
    """The spans traced by an SDK of its own."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.hook = OpenTelemetryHook(self.provider, names=OLD)

    def take(self) -> list[ReadableSpan]:
        """The ended spans, in the order in which they ended."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


@on_both_backends
def test_a_message_joins_the_spans_of_both_sides(backend: str, spans: Spans) -> None:
    """`send` is a child of the application's span, `process` a child of `send`; the application's own
    spans within the loop are children of `process`."""

    async def body() -> None:
        tracer = spans.provider.get_tracer("app")
        async with cluster(topics=ONE_QUEUE, hooks=[spans.hook], client_id="me") as (fake, client):
            serve_group(fake, client)
            async with client.producer("pg") as producer:
                with tracer.start_as_current_span("order"):
                    sent = await producer.send("T", b"hello", tag="a", keys=["k1"], ordering_key="o")
            async with client.push_consumer("cg", subscribe="T", start="first") as consumer:
                async for delivery in consumer:
                    async with delivery:
                        with tracer.start_as_current_span("work"):
                            pass
                    break
        send, order, work, process = spans.take()
        assert [send.name, process.name] == ["send T", "process T"]
        assert [send.kind, process.kind] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
        assert send.parent == context_of(order)
        assert process.parent is not None
        assert (process.parent.span_id, process.parent.is_remote) == (context_of(send).span_id, True)
        assert work.parent == context_of(process)
        assert len({context_of(span).trace_id for span in (send, order, work, process)}) == 1
        assert dict(send.attributes or {}) == {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "T",
            "messaging.destination.partition.id": "0",
            "messaging.client.id": "me",
            "messaging.message.id": sent.message_id,
            "messaging.message.body.size": 5,
            "messaging.rocketmq.message.type": "fifo",
            "messaging.rocketmq.message.tag": "a",
            "messaging.rocketmq.message.keys": ("k1",),
            "messaging.rocketmq.message.group": "o",
            "server.address": "10.0.0.1",
            "server.port": 10911,
        }
        assert (process.attributes or {})["messaging.consumer.group.name"] == "cg"
        assert (process.attributes or {})["messaging.message.id"] == sent.message_id

    run(backend, body)


@on_both_backends
def test_a_loop_that_goes_on_ends_each_span(backend: str, spans: Spans) -> None:
    """A processed message is not an error; one whose processing raises is. Afterwards the current span is the
    same as before."""

    async def body() -> None:
        async with cluster(topics=ONE_QUEUE, hooks=[spans.hook]) as (fake, client):
            serve_group(fake, client)
            for number in range(3):
                fake.brokers["broker-a"].put("T", 0, b"%d" % number)
            async with client.push_consumer("cg", subscribe="T", start="first", concurrency=1) as consumer:
                seen = set()
                async for delivery in consumer:
                    async with delivery as message:
                        seen.add(trace.get_current_span().get_span_context().span_id)
                        if message.body == b"2":
                            raise LookupError
                    if len(seen) == 3:
                        break
            assert not trace.get_current_span().get_span_context().is_valid
        found = spans.take()
        assert [span.status.status_code for span in found] == [
            StatusCode.UNSET,
            StatusCode.UNSET,
            StatusCode.ERROR,
        ]
        assert {context_of(span).span_id for span in found} == seen
        assert len(seen) == 3
        assert (found[2].attributes or {})["error.type"] == "EXCEPTION"

    run(backend, body)


@on_both_backends
def test_pulls_and_batches_link_to_where_messages_come_from(backend: str, spans: Spans) -> None:
    """One span for many messages has links instead of a parent; a `traceparent` set by the application is
    kept."""

    async def body() -> None:
        own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        async with cluster(topics=ONE_QUEUE, hooks=[spans.hook]) as (_, client):
            async with client.producer("pg") as producer:
                await producer.send_batch(
                    [Message("T", b"1"), Message("T", b"2", properties={"traceparent": own})]
                )
            async with client.pull_consumer("cg") as consumer:
                (queue,) = await consumer.queues("T")
                await consumer.pull(queue, 0)
        send, receive = spans.take()
        assert [f"{link.context.span_id:x}" for link in send.links] == ["b7ad6b7169203331"]
        assert (send.attributes or {})["messaging.batch.message_count"] == 2
        assert (receive.name, receive.kind) == ("receive T", SpanKind.CLIENT)
        assert [f"{link.context.span_id:016x}" for link in receive.links] == [
            f"{context_of(send).span_id:016x}",
            "b7ad6b7169203331",
        ]
        assert "messaging.message.id" not in (send.attributes or {})

    run(backend, body)


@on_both_backends
def test_a_send_that_fails_is_an_error(backend: str, spans: Spans) -> None:
    """The span has the kind of the error; system topics have no spans."""

    async def body() -> None:
        async with cluster(
            topics=ONE_QUEUE | {"RMQ_SYS_TRACE_TOPIC": {"broker-a": 1}}, hooks=[spans.hook]
        ) as (fake, client):
            async with client.producer("pg") as producer:
                await producer.send("RMQ_SYS_TRACE_TOPIC", b"x")
                fake.brokers["broker-a"].overrides[RequestCode.SEND_MESSAGE_V2] = lambda command: answer(
                    command, ResponseCode.SYSTEM_BUSY, "wait"
                )
                with pytest.raises(SendFailed):
                    await producer.send("T", b"x")
            async with client.pull_consumer("cg") as consumer:
                (queue,) = await consumer.queues("RMQ_SYS_TRACE_TOPIC")
                assert len((await consumer.pull(queue, 0)).messages) == 1
        (span,) = spans.take()
        assert (span.status.status_code, (span.attributes or {})["error.type"]) == (
            StatusCode.ERROR,
            "SendFailed",
        )
        assert "wait" in (span.status.description or "")

    run(backend, body)


@on_both_backends
def test_without_an_sdk_the_context_passes_through(backend: str) -> None:
    """Without an SDK the API records nothing, but passes on a context it was given."""

    async def body() -> None:
        hook = OpenTelemetryHook(trace.NoOpTracerProvider(), names=OLD)
        remote = trace.NonRecordingSpan(trace.SpanContext(1 << 100, 1 << 50, True, trace.TraceFlags(1)))
        async with cluster(topics=ONE_QUEUE, hooks=[hook]) as (_, client):
            async with client.producer("pg") as producer:
                with trace.use_span(remote):
                    await producer.send("T", b"1")
                await producer.send("T", b"2")
            async with client.pull_consumer("cg") as consumer:
                (queue,) = await consumer.queues("T")
                first, second = (await consumer.pull(queue, 0)).messages
        assert first.properties["traceparent"] == f"00-{1 << 100:032x}-{1 << 50:016x}-01"
        assert "traceparent" not in second.properties

    run(backend, body)


@pytest.mark.parametrize(
    ("wish", "prefixes"),
    [
        ("", ["messaging.rocketmq."]),
        ("http", ["messaging.rocketmq."]),
        ("http, messaging", ["rocketmq."]),
        ("messaging,messaging/dup", ["messaging.rocketmq.", "rocketmq."]),
    ],
)
def test_the_environment_chooses_the_names(wish: str, prefixes: list[str]) -> None:
    """As the conventions require during their transition; stable names appear once, attributes without a
    value not at all."""
    found = Names({OPT_IN: wish}).of(
        {Attribute.TAG: "a", Attribute.SYSTEM: "rocketmq", Attribute.KEYS: (), Attribute.NAMESPACE: ""}
    )
    assert found == {"messaging.system": "rocketmq"} | {f"{prefix}message.tag": "a" for prefix in prefixes}


def test_without_the_extra_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; the message trace works without it."""
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "rmqkit_hook_trace.otel")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[otel\]'"):
        importlib.import_module("rmqkit_hook_trace.otel")
    importlib.reload(sys.modules["rmqkit_hook_trace"])
