"""OpenTelemetry spans around sends and consumption, joined by the W3C trace context in the messages' properties (`traceparent`, `tracestate`).

Only the API is needed: what becomes of spans is up to the SDK the application sets up. Without one the context still passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from typing import NamedTuple

from attrs import evolve

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; OpenTelemetryHook needs the extra: pip install 'rmqkit[otel]'", name=error.name) from error

from rmqkit.client.hooks import ClientConsumeContext, ClientConsumeHook, ClientSendContext, ClientSendHook
from rmqkit.client.received import ReceivedMessage
from rmqkit.model.message import Message
from rmqkit.model.message_type import MessageType, message_type
from rmqkit.model.names import is_system_topic, namespace_of
from rmqkit_hook_trace.attributes import SYSTEM, Attribute, Names, Value

_TRACEPARENT = "traceparent"
_TYPES = {
    MessageType.NORMAL: "normal",
    MessageType.ORDER: "fifo",
    MessageType.DELAY: "delay",
    MessageType.HALF: "transaction",
    MessageType.COMMIT: "transaction",
}


class _Active(NamedTuple):
    span: Span
    token: Token[Context] | None


class OpenTelemetryHook(ClientSendHook, ClientConsumeHook):
    """A span `send TOPIC` around each send, `process TOPIC` around the work on a message, `receive TOPIC` for what a pull brought.

    The span of `process` is the current one while the application works on the message, and a child of the span it was sent in; `receive` and spans of
    batches link to those. A message that carries a `traceparent` of the application's keeps it. System topics have no spans.

    tracer_provider  default the global one
    names            of attributes; default what the environment asks for
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, names: Names | None = None) -> None:
        self._tracer = trace.get_tracer("rmqkit", tracer_provider=tracer_provider)
        self._names = names or Names()
        self._propagator = TraceContextTextMapPropagator()

    def before_send(self, context: ClientSendContext) -> None:
        if is_system_topic(context.topic):
            return
        first, many = context.messages[0], len(context.messages) > 1
        span = self._tracer.start_span(
            f"send {context.topic}",
            kind=SpanKind.PRODUCER,
            links=self._links([message.properties.get(_TRACEPARENT) for message in context.messages]),
            attributes=self._names.of(
                {
                    **self._common("send", context.topic, context.client_id),
                    Attribute.BATCH_COUNT: len(context.messages) if many else None,
                    Attribute.BODY_SIZE: None if many else len(first.body),
                    Attribute.TYPE: _TYPES[context.message_type],
                    Attribute.TAG: None if many else first.tag,
                    Attribute.KEYS: () if many else tuple(first.keys),
                    Attribute.ORDERING_KEY: first.ordering_key,
                    Attribute.DELAY_LEVEL: first.delay_level,
                }
            ),
        )
        context.notes[self] = span
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        context.messages = [_carrying(message, carrier) for message in context.messages]

    def after_send(self, context: ClientSendContext) -> None:
        span: Span | None = context.notes.get(self)
        if span is None:
            return
        host, _, port = (context.address or "").rpartition(":")
        span.set_attributes(
            self._names.of(
                {
                    Attribute.MESSAGE_ID: context.message_ids[0] if len(context.message_ids) == 1 else None,
                    Attribute.PARTITION: str(context.queue.queue_id) if context.queue is not None else None,
                    Attribute.SERVER_ADDRESS: host.strip("[]"),
                    Attribute.SERVER_PORT: int(port) if port.isdigit() else None,
                    Attribute.ERROR_TYPE: type(context.error).__qualname__ if context.error is not None else None,
                }
            )
        )
        if context.error is not None:
            span.set_status(Status(StatusCode.ERROR, str(context.error)))
        span.end()

    def before_consume(self, context: ClientConsumeContext) -> None:
        if is_system_topic(context.queue.topic):
            return
        messages = context.messages
        one = None if context.pulled else messages[0]
        span = self._tracer.start_span(
            f"{'receive' if one is None else 'process'} {context.queue.topic}",
            context=self._propagator.extract(one.properties) if one is not None and _TRACEPARENT in one.properties else None,
            kind=SpanKind.CLIENT if one is None else SpanKind.CONSUMER,
            links=self._links([message.properties.get(_TRACEPARENT) for message in messages]),
            attributes=self._names.of(
                {
                    **self._common("receive" if one is None else "process", context.queue.topic, context.client_id),
                    Attribute.CONSUMER_GROUP: context.group,
                    Attribute.PARTITION: str(context.queue.queue_id),
                    Attribute.BATCH_COUNT: len(messages) if one is None else None,
                    **(self._of_message(one) if one is not None else {}),
                }
            ),
        )
        token = None if one is None else contexts.attach(trace.set_span_in_context(span))
        context.notes[self] = _Active(span, token)

    def after_consume(self, context: ClientConsumeContext) -> None:
        active: _Active | None = context.notes.get(self)
        if active is None:
            return
        # A stream may be closed by another task than the one that iterated it: there the span never was the current one.
        if active.token is not None and trace.get_current_span() is active.span:
            contexts.detach(active.token)
        if not context.success:
            active.span.set_attributes(self._names.of({Attribute.ERROR_TYPE: context.result.name}))
            active.span.set_status(Status(StatusCode.ERROR, context.status))
        active.span.end()

    def _common(self, operation: str, topic: str, client_id: str) -> dict[Attribute, Value | None]:
        return {
            Attribute.SYSTEM: SYSTEM,
            Attribute.OPERATION_NAME: operation,
            Attribute.OPERATION_TYPE: operation,
            Attribute.DESTINATION: topic,
            Attribute.CLIENT_ID: client_id,
            Attribute.NAMESPACE: namespace_of(topic),
        }

    def _of_message(self, message: ReceivedMessage) -> dict[Attribute, Value | None]:
        return {
            Attribute.MESSAGE_ID: message.message_id,
            Attribute.BODY_SIZE: len(message.body),
            Attribute.TYPE: _TYPES[message_type(message.properties)],
            Attribute.TAG: message.tag,
            Attribute.KEYS: message.keys,
            Attribute.ORDERING_KEY: message.ordering_key,
        }

    def _links(self, parents: Sequence[str | None]) -> list[Link]:
        """To the spans that messages were made in, as far as they say so."""
        found = [trace.get_current_span(self._propagator.extract({_TRACEPARENT: parent})) for parent in parents if parent]
        return [Link(span.get_span_context()) for span in found if span.get_span_context().is_valid]


def _carrying(message: Message, carrier: dict[str, str]) -> Message:
    if not carrier or _TRACEPARENT in message.properties:
        return message
    return evolve(message, properties={**message.properties, **carrier})
