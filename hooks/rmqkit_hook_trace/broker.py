"""OpenTelemetry spans of a broker: a child of the sender's span for each send whose trace is sampled.

The context is the W3C trace context in the message's properties (`traceparent`, `tracestate`), as the hook of
the client puts it there (`rmqkit_hook_trace.otel`). Messages without one, and of traces that are not sampled,
cost a look at a property and have no span. Only the API is needed; the SDK of the process processes the
spans.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rmqkit.errors import DecodeError
from rmqkit.model import properties as props
from rmqkit.model.message_type import message_type
from rmqkit.model.names import is_system_topic, namespace_of
from rmqkit.plugin.hooks import SendContext, SendMessageHook, SendRun
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit_hook_trace.attributes import SYSTEM, TYPES, Attribute, Names, Value

_TRACEPARENT = "traceparent"
_SAMPLED = 1
_CODES = {int(code): code.name for code in ResponseCode}


class SendSpans(SendMessageHook):
    """Creates a span `store TOPIC` from the arrival of a send to its answer. The span of a batch is a child
    of the context in its first message. System topics have no spans.

    tracer_provider  default the global one
    names            names of attributes; default those selected by the environment
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, names: Names | None = None) -> None:
        self._tracer = trace.get_tracer("rmqkit.broker", tracer_provider=tracer_provider)
        self._names = names or Names()
        self._propagator = TraceContextTextMapPropagator()

    def before(self, sends: SendRun) -> None:
        for at, (properties, header) in enumerate(zip(sends.properties, sends.headers, strict=True)):
            if header.batch or sends.requests[at].code == RequestCode.SEND_BATCH_MESSAGE:
                properties = _first_properties(sends.requests[at].body)
            if _is_sampled(properties.get(_TRACEPARENT)) and not is_system_topic(header.topic):
                self._begin(sends[at], properties)

    def after(self, sends: SendRun) -> None:
        for at, context in sends.contexts.items():
            span: Span | None = context.notes.pop(self, None)
            if span is not None:
                self._end(span, sends, at)

    def _begin(self, context: SendContext, properties: Mapping[str, str]) -> None:
        span = self._tracer.start_span(
            f"store {context.topic}",
            context=self._propagator.extract(properties),
            kind=SpanKind.SERVER,
            attributes=self._names.of(
                {
                    Attribute.SYSTEM: SYSTEM,
                    Attribute.OPERATION_NAME: "store",
                    Attribute.DESTINATION: context.topic,
                    Attribute.NAMESPACE: namespace_of(context.topic),
                    Attribute.BODY_SIZE: context.body_bytes,
                    Attribute.TYPE: TYPES[message_type(properties)],
                }
            ),
        )
        context.notes[self] = span

    def _end(self, span: Span, sends: SendRun, at: int) -> None:
        context = sends[at]
        found: dict[Attribute, Value | None] = {}
        if context.messages:
            first, many = context.messages[0], len(context.messages) > 1
            found = {
                Attribute.MESSAGE_ID: None if many else first.properties.get(props.UNIQ_KEY),
                Attribute.BATCH_COUNT: len(context.messages) if many else None,
                Attribute.PARTITION: str(first.queue_id),
            }
        if sends.code != ResponseCode.SUCCESS:
            found[Attribute.ERROR_TYPE] = _CODES.get(sends.code, str(sends.code))
            span.set_status(Status(StatusCode.ERROR, sends.remark))
        span.set_attributes(self._names.of(found))
        span.end()


def _is_sampled(parent: str | None) -> bool:
    """Whether a `traceparent` says that its trace is sampled."""
    if not parent:
        return False
    try:
        return int(parent[-2:], 16) & _SAMPLED != 0
    except ValueError:
        return False


def _first_properties(body: bytes) -> dict[str, str]:
    """Those of the first message of a batch; empty when it cannot be read."""
    try:
        (first,) = batch.decode(body[: int.from_bytes(body[:4], "big")])
        return props.decode_bytes(first.properties)
    except (DecodeError, ValueError):
        return {}
