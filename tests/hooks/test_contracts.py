"""The contracts of hooks over the built-in ones, and broken hooks that the contracts must find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider

from rmqkit.abc import Peer
from rmqkit.client.hooks import (
    ClientConsumeContext,
    ClientConsumeHook,
    ClientHook,
    ClientSendContext,
    ClientSendHook,
    FilterMessageContext,
    FilterMessageHook,
)
from rmqkit.errors import RequestRefused
from rmqkit.hook_calls import SLOW_CALL_MS
from rmqkit.hooks import ConsumeContext, ConsumeMessageHook, PutMessageHook, RpcHook, SendContext, SendMessageHook
from rmqkit.model.delay import parse_levels
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import MessageType
from rmqkit.protocol.command import Command
from rmqkit.testing import client_hooks
from rmqkit.testing.client_hooks import ClientHookContract
from rmqkit.testing.hooks import ConsumeMessageHookContract, PutMessageHookContract, RpcHookContract, SendMessageHookContract
from rmqkit_delay.park import ParkDelayed
from rmqkit_hook_audit.recorder import Queue, Recorder
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_hook_audit.watching import ConsumeAudit, RequestAudit, SendAudit
from rmqkit_hook_metrics.counting import Counts
from rmqkit_hook_metrics.watching import ConsumeMetrics, RpcMetrics, SendMetrics
from rmqkit_hook_trace import MessageTrace
from rmqkit_hook_trace.otel import OpenTelemetryHook

EVERYTHING = AuditSettings(body_bytes=10, properties=("KEYS", "TAGS"))


def recorder() -> Recorder:
    return Recorder("broker-a", [Queue(100)])


class TestSendAudit(SendMessageHookContract):
    def make_hook(self) -> SendMessageHook:
        hook = SendAudit(EVERYTHING)
        hook.begin(recorder())
        return hook


class TestConsumeAudit(ConsumeMessageHookContract):
    def make_hook(self) -> ConsumeMessageHook:
        hook = ConsumeAudit(EVERYTHING)
        hook.begin(recorder())
        return hook


class TestRequestAudit(RpcHookContract):
    def make_hook(self) -> RpcHook:
        hook = RequestAudit()
        hook.begin(recorder())
        return hook


class TestSendMetrics(SendMessageHookContract):
    def make_hook(self) -> SendMessageHook:
        hook = SendMetrics()
        hook.begin(Counts())
        return hook


class TestConsumeMetrics(ConsumeMessageHookContract):
    def make_hook(self) -> ConsumeMessageHook:
        hook = ConsumeMetrics()
        hook.begin(Counts())
        return hook


class TestRpcMetrics(RpcHookContract):
    def make_hook(self) -> RpcHook:
        hook = RpcMetrics(True)
        hook.begin(Counts())
        return hook


class TestParkDelayed(PutMessageHookContract):
    interesting = ({"DELAY": "3"}, {"DELAY": "99", "TAGS": "a"}, {"DELAY": "0"})

    def make_hook(self) -> PutMessageHook:
        return ParkDelayed(parse_levels("1s 5s 10s"))


class TestMessageTrace(ClientHookContract):
    def make_hook(self) -> ClientHook:
        return MessageTrace()


class TestOpenTelemetry(ClientHookContract):
    def make_hook(self) -> ClientHook:
        return OpenTelemetryHook(TracerProvider())


# --- what the contracts find -------------------------------------------------------------------------------------------


class Raises(SendMessageHook, ConsumeMessageHook):
    """Breaks on what comes after, and at a pull."""

    def after(self, context: SendContext | ConsumeContext) -> None:
        raise ValueError("boom")

    def before(self, context: SendContext | ConsumeContext) -> None:
        if isinstance(context, ConsumeContext):
            raise ValueError("boom")


class RaisesAfter(RpcHook):
    def after(self, request: Command, response: Command, peer: Peer) -> None:
        raise ValueError("boom")


class Refuses(SendMessageHook):
    def before(self, context: SendContext) -> None:
        raise RequestRefused(16, "no")


class NoCodes(RpcHook):
    def __init__(self, *codes: Any) -> None:
        self.codes = frozenset(codes) or None

    def before(self, request: Command, peer: Peer) -> None:
        raise RequestRefused(16, "no")


class Slow(SendMessageHook):
    """Now and then."""

    def after(self, context: SendContext) -> None:
        end = trio.current_time() + (2 * SLOW_CALL_MS / 1000 if context.message_type is MessageType.ORDER else 0)
        while trio.current_time() < end:
            pass


class Forgets(PutMessageHook):
    """Changes properties without their text."""

    def before_put(self, message: PutMessage) -> None:
        message.properties = message.properties | {"x": "y"}


class Wants(PutMessageHook):
    """Does something about what it does not want."""

    wants = frozenset({"DELAY"})

    def before_put(self, message: PutMessage) -> None:
        message.topic = "Elsewhere"


class Swallows(FilterMessageHook):
    def filter_messages(self, context: FilterMessageContext) -> None:
        context.messages.clear()


class Breaks(ClientSendHook, ClientConsumeHook):
    def after_send(self, context: ClientSendContext) -> None:
        raise ValueError("boom")

    def after_consume(self, context: ClientConsumeContext) -> None:
        raise ValueError("boom")


def contract(kind: type[Any], hook: object) -> Any:
    """A contract over one hook."""
    return type("Broken", (kind,), {"make_hook": lambda self: hook})()


@pytest.mark.parametrize(
    ("kind", "hook", "fault"),
    [
        (SendMessageHookContract, Raises(), "raised what it may not"),
        (SendMessageHookContract, Refuses(), "answers differently"),
        (SendMessageHookContract, Slow(), "the hook is slow"),
        (ConsumeMessageHookContract, Raises(), "raised what it may not"),
        (RpcHookContract, RaisesAfter(), "raised what it may not"),
        (RpcHookContract, NoCodes(), "answers differently"),
    ],
)
async def test_a_hook_that_does_harm_is_found(
    kind: type[Any], hook: object, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By what a broker answers, and by what is raised."""
    with pytest.raises(AssertionError, match=fault):
        await contract(kind, hook).test_a_broker_answers_as_without_the_hook(tmp_path, caplog)


def test_a_put_hook_that_does_harm_is_found() -> None:
    """Text and mapping that differ; a message that is none of its business."""
    with pytest.raises(AssertionError):
        contract(PutMessageHookContract, Forgets()).test_what_it_leaves_can_be_stored()
    with pytest.raises(AssertionError):
        contract(PutMessageHookContract, Wants()).test_it_leaves_alone_what_it_does_not_want()


def test_an_rpc_hook_with_wrong_codes_is_found() -> None:
    """And one that refuses though it says it does not."""
    with pytest.raises(AssertionError):
        contract(RpcHookContract, NoCodes("10")).test_its_codes_are_numbers()
    with pytest.raises(AssertionError, match="the hook refuses a request"):
        contract(RpcHookContract, NoCodes()).test_before_without_after()


@pytest.mark.parametrize(("hook", "fault"), [(Swallows(), "sees something else"), (Breaks(), "does what it may not")])
async def test_a_client_hook_that_does_harm_is_found(
    hook: object, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the application sees, and by the log."""
    monkeypatch.setattr(client_hooks, "PATIENCE_S", 0.2)
    with pytest.raises(AssertionError, match=fault):
        await contract(ClientHookContract, hook).test_an_application_sees_what_it_sees_without_the_hook(tmp_path, caplog)
