"""What became of a message, for people who look for it: RocketMQ's own message trace, and OpenTelemetry spans. Hooks of the client, see `rmqkit.client.hooks`.

    async with Client("127.0.0.1:9876", hooks=[MessageTrace(), OpenTelemetryHook()]) as client: ...

records        the records of the trace topic, byte for byte as Java writes them
message_trace  collects them and sends them now and then
attributes     names of the spans' attributes, in one table
otel           the spans; needs the extra `otel`
"""

from rmqkit_hook_trace.message_trace import MessageTrace

__all__ = ["MessageTrace"]
