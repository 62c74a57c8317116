"""Tracing of messages: RocketMQ's own message trace, and OpenTelemetry spans. Hooks of the client, see
`rmqkit.client.hooks`, and with `hooks = ["trace"]` of a broker.

    async with Client("127.0.0.1:9876", hooks=[MessageTrace(), OpenTelemetryHook()]) as client: ...

records        the records of the trace topic, byte for byte as Java writes them
message_trace  collects records and sends them periodically
attributes     names of span attributes, in one table
otel           the spans of a client; needs the extra `otel`
broker         the spans of a broker; needs the extra `otel`
"""

from rmqkit_hook_trace.message_trace import MessageTrace

__all__ = ["MessageTrace"]
