"""The spans of a broker's sends, collected by OpenTelemetry's own SDK."""

from __future__ import annotations

import builtins
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from rmqkit import hookimpl
from rmqkit.client import Client, Message
from rmqkit.config import Config, load
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.plugin import loader
from rmqkit.plugin.hooks import EachSendHook, SendContext, SendMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.testing.broker import running_broker, running_cluster
from rmqkit.testing.calls import calling_broker
from rmqkit_hook_trace.attributes import Names
from rmqkit_hook_trace.broker import SendSpans
from rmqkit_hook_trace.otel import OpenTelemetryHook

OLD = Names({})
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


class Refuse(EachSendHook):
    """Refuses sends of the body "bad"."""

    def before_each(self, context: SendContext) -> None:
        if context.request.body == b"bad":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "a bad body")


class Tracing:
    """A plugin with the hook and an SDK of its own."""

    def __init__(self, **provider: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**provider)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        register("trace", SendSpans(self.provider, names=OLD), order=-1)
        register("refuse", Refuse())

    def take(self) -> list[ReadableSpan]:
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    made = Tracing()
    yield made
    made.provider.shutdown()


@asynccontextmanager
async def traced(directory: Path, tracing: Tracing) -> AsyncIterator[Any]:
    async with (
        running_broker(directory, extra=[("tracing", tracing)], scheme="memory") as broker,
        calling_broker(broker) as call,
    ):
        yield call


def send(flags: str | None, body: bytes = b"x", topic: str = "T") -> Command:
    parent = f"traceparent\x01{PARENT}{flags}\x02" if flags is not None else ""
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic=topic, queue_id=0, properties=f"UNIQ_KEY\x01K\x02{parent}"
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, body)


async def test_a_span_joins_the_context_of_the_sender(tmp_path: Path, tracing: Tracing) -> None:
    """A send whose trace is sampled has a span `store TOPIC`, a child of the span in its `traceparent`."""
    async with traced(tmp_path, tracing) as call:
        assert (await call(send("01"))).code == ResponseCode.SUCCESS
    (span,) = tracing.take()
    assert (span.name, span.kind) == ("store T", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-1]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time >= span.start_time
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "store",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "K",
        "messaging.message.body.size": 1,
        "messaging.rocketmq.message.type": "normal",
    }


@pytest.mark.parametrize("flags", [None, "00", "zz", ""])
async def test_what_is_not_sampled_has_no_span(flags: str | None, tmp_path: Path, tracing: Tracing) -> None:
    """Messages without a context, with one that is not sampled, and with a broken one have no span."""
    async with traced(tmp_path, tracing) as call:
        assert (await call(send(flags))).code == ResponseCode.SUCCESS
    assert tracing.take() == []


async def test_an_sdk_that_samples_nothing_costs_no_answer(tmp_path: Path) -> None:
    """Sends are answered as ever when the SDK of the broker drops all spans."""
    tracing = Tracing(sampler=ALWAYS_OFF)
    async with traced(tmp_path, tracing) as call:
        assert (await call(send("01"))).code == ResponseCode.SUCCESS
    assert tracing.take() == []


@pytest.mark.parametrize(
    ("sent", "error", "remark"),
    [(send("01", b"bad"), "NO_PERMISSION", "a bad body"), (send("01", b""), "MESSAGE_ILLEGAL", "no body")],
)
async def test_a_refused_send_is_an_error(
    sent: Command, error: str, remark: str, tmp_path: Path, tracing: Tracing
) -> None:
    """The span of a send that a hook or a check refuses ends with the code and the remark of the answer."""
    async with traced(tmp_path, tracing) as call:
        assert (await call(sent)).code != ResponseCode.SUCCESS
    (span,) = tracing.take()
    assert span.status.status_code is StatusCode.ERROR
    assert remark in (span.status.description or "")
    assert (span.attributes or {})["error.type"] == error


async def test_system_topics_have_no_spans(tmp_path: Path, tracing: Tracing) -> None:
    """Traffic of the brokers themselves is not traced, as in the client."""
    async with traced(tmp_path, tracing) as call:
        await call(send("01", topic="RMQ_SYS_TRACE_TOPIC"))
    assert tracing.take() == []


async def test_client_and_broker_make_one_trace(tmp_path: Path, tracing: Tracing) -> None:
    """The span of the broker is a child of the client's `send`, for a single message and for a batch."""
    hook = OpenTelemetryHook(tracing.provider, names=OLD)
    async with (
        running_cluster(tmp_path, extra=[("tracing", tracing)]) as cluster,
        Client(cluster.namesrv_text, hooks=[hook], connect=cluster.connect) as client,
        client.producer("p") as producer,
    ):
        await producer.send("T", b"one")
        await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
    spans = tracing.take()
    for name, count in (("one", None), ("batch", 2)):
        store, sent = spans[:2]
        spans = spans[2:]
        assert (store.name, sent.name) == ("store T", "send T"), name
        context = sent.get_span_context()
        assert context is not None
        assert store.parent is not None
        assert (store.parent.trace_id, store.parent.span_id) == (context.trace_id, context.span_id)
        assert (store.attributes or {}).get("messaging.batch.message_count") == count
    assert spans == []


def test_the_hook_is_switched_on_by_name() -> None:
    """`hooks = ["trace"]` registers it; without that it is not there."""
    assert [*loader.load(load(environ={})).send_message_hooks] == []
    (hook,) = loader.load(load(environ={}, flags={"hooks": ["trace"]})).send_message_hooks
    assert isinstance(hook, SendSpans)


def test_without_opentelemetry_the_start_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")
        return imported(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "rmqkit_hook_trace.broker", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"\.\[otel\]"):
        loader.load(load(environ={}, flags={"hooks": ["trace"]}))
