"""OpenTelemetry spans around sends and consumption, linked by the W3C trace context in the messages'
properties (`traceparent`, `tracestate`).

Only the API is needed; the application's SDK processes the spans. Without an SDK the context is still
propagated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from typing import NamedTuple

import msgspec

from rmqkit.errors import how_to_install

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; OpenTelemetryHook needs the extra: {how_to_install('otel')}", name=error.name
    ) from error

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.hooks import ClientConsumeContext, ClientConsumeHook, ClientSendContext, ClientSendHook
from rmqkit.model.message import Message
from rmqkit.model.message_type import message_type
from rmqkit.model.names import is_system_topic, namespace_of
from rmqkit_hook_trace.attributes import SYSTEM, TYPES, Attribute, Names, Value

_TRACEPARENT = "traceparent"


class _Active(NamedTuple):
    span: Span
    token: Token[Context] | None


class OpenTelemetryHook(ClientSendHook, ClientConsumeHook):
    """Creates a span `send TOPIC` around each send, `process TOPIC` around the processing of a message, and
    `receive TOPIC` for a pull.

    The span `process` is the current span while the application processes the message, and a child of the
    span in which the message was sent; `receive` and spans of batches are linked to those. A message that
    already has a `traceparent` keeps it. System topics have no spans.

    tracer_provider  default the global one
    names            names of attributes; default those selected by the environment
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
                    Attribute.TYPE: TYPES[context.message_type],
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
        found: dict[Attribute, Value | None] = {
            Attribute.MESSAGE_ID: context.message_ids[0] if len(context.message_ids) == 1 else None,
            Attribute.PARTITION: str(context.queue.queue_id) if context.queue is not None else None,
            Attribute.SERVER_ADDRESS: host.strip("[]"),
            Attribute.SERVER_PORT: int(port) if port.isdigit() else None,
        }
        if context.error is not None:
            found[Attribute.ERROR_TYPE] = type(context.error).__qualname__
            span.set_status(Status(StatusCode.ERROR, str(context.error)))
        span.set_attributes(self._names.of(found))
        span.end()

    def before_consume(self, context: ClientConsumeContext) -> None:
        if is_system_topic(context.queue.topic):
            return
        messages = context.messages
        one = None if context.pulled else messages[0]
        operation = "receive" if one is None else "process"
        about = self._common(operation, context.queue.topic, context.client_id)
        about |= {Attribute.CONSUMER_GROUP: context.group, Attribute.PARTITION: str(context.queue.queue_id)}
        about |= {Attribute.BATCH_COUNT: len(messages)} if one is None else self._of_message(one)
        is_child = one is not None and _TRACEPARENT in one.properties
        span = self._tracer.start_span(
            f"{operation} {context.queue.topic}",
            context=self._propagator.extract(messages[0].properties) if is_child else None,
            kind=SpanKind.CLIENT if one is None else SpanKind.CONSUMER,
            links=self._links([message.properties.get(_TRACEPARENT) for message in messages]),
            attributes=self._names.of(about),
        )
        token = None if one is None else contexts.attach(trace.set_span_in_context(span))
        context.notes[self] = _Active(span, token)

    def after_consume(self, context: ClientConsumeContext) -> None:
        active: _Active | None = context.notes.get(self)
        if active is None:
            return
        # A stream may be closed by another task than the one that iterated it; there the span was never the
        # current one.
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
            Attribute.TYPE: TYPES[message_type(message.properties)],
            Attribute.TAG: message.tag,
            Attribute.KEYS: message.keys,
            Attribute.ORDERING_KEY: message.ordering_key,
        }

    def _links(self, parents: Sequence[str | None]) -> list[Link]:
        """Links to the spans in which the messages were created, where the messages contain them."""
        found = [
            trace.get_current_span(self._propagator.extract({_TRACEPARENT: parent}))
            for parent in parents
            if parent
        ]
        return [Link(span.get_span_context()) for span in found if span.get_span_context().is_valid]


def _carrying(message: Message, carrier: dict[str, str]) -> Message:
    if not carrier or _TRACEPARENT in message.properties:
        return message
    return msgspec.structs.replace(message, properties={**message.properties, **carrier})
