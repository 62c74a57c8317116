"""The hook contracts run over the built-in hooks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from rmqkit.client.hooks import ClientHook
from rmqkit.config import Config
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.hooks import ConsumeMessageHook, PutMessageHook, SendMessageHook
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.testing.client_hooks import ClientHookContract
from rmqkit.testing.hooks import (
    ConsumeMessageHookContract,
    PutMessageHookContract,
    RpcHookContract,
    SendMessageHookContract,
)
from rmqkit_delay.levels import parse_levels
from rmqkit_delay.park import ParkDelayed
from rmqkit_hook_audit.hooks import ConsumeAudit, RequestAudit, SendAudit
from rmqkit_hook_audit.recorder import Queue, Recorder
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_hook_metrics.counting import Counts
from rmqkit_hook_metrics.hooks import ConsumeMetrics, RpcMetrics, SendMetrics
from rmqkit_hook_trace import MessageTrace
from rmqkit_hook_trace.broker import SendSpans
from rmqkit_hook_trace.otel import OpenTelemetryHook
from rmqkit_message_type.checks import CheckRecalls, CheckSends
from rmqkit_pop.lite.service import LiteService
from rmqkit_pop.lite.storing import PutLite
from rmqkit_pop.priority import PutByPriority
from rmqkit_pop.settings import PopSettings
from rmqkit_timer.park import ParkTimed
from rmqkit_transaction.keep import KeepPrepared

EVERYTHING = AuditSettings(body_bytes=10, properties=("KEYS", "TAGS"))


def recorder() -> Recorder:
    return Recorder("broker-a", [Queue(100)])


class TestSendAudit(SendMessageHookContract):
    def make_hook(self) -> SendMessageHook:
        hook = SendAudit(EVERYTHING)
        hook.begin(recorder())
        return hook


class TestSendSpans(SendMessageHookContract):
    def make_hook(self) -> SendMessageHook:
        return SendSpans(TracerProvider())


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


class TestKeepPrepared(PutMessageHookContract):
    """The properties alone make nothing a half message."""

    interesting = ({"TRAN_MSG": "true", "PGROUP": "p"},)

    def make_hook(self) -> PutMessageHook:
        return KeepPrepared()


class TestParkDelayed(PutMessageHookContract):
    interesting = ({"DELAY": "3"}, {"DELAY": "99", "TAGS": "a"}, {"DELAY": "0"})

    def make_hook(self) -> PutMessageHook:
        return ParkDelayed(parse_levels("1s 5s 10s"))


class TestPutByPriority(PutMessageHookContract):
    """A message of another type loses the property."""

    interesting = (
        {"_SYS_MSG_PRIORITY_": "3"},
        {"_SYS_MSG_PRIORITY_": "9", "DELAY": "1"},
        {"_SYS_MSG_PRIORITY_": "x"},
    )

    def make_hook(self) -> PutMessageHook:
        broker: Any = SimpleNamespace(topics=SimpleNamespace(configs={"T": TopicConfig(topic_name="T")}))
        hook = PutByPriority()
        hook.open(broker)
        return hook


class TestPutLite(PutMessageHookContract):
    """An illegal name is refused."""

    may_refuse = True
    interesting = ({"__LITE_TOPIC": "a"}, {"__LITE_TOPIC": "a b"}, {"__LITE_TOPIC": "x" * 65})

    def make_hook(self) -> PutMessageHook:
        service = LiteService()
        lites: Any = SimpleNamespace(
            is_parent=lambda topic: topic == "T",
            count=0,
            queues={},
            settings=PopSettings(),
            stored=lambda topic, name, end: None,
        )
        service.lites = lites
        broker: Any = SimpleNamespace(registry=SimpleNamespace(services={"lite": service}))
        hook = PutLite()
        hook.open(broker)
        return hook


class TestCheckSends(SendMessageHookContract):
    """The topics of the tests declare no type."""

    def make_hook(self) -> SendMessageHook:
        return CheckSends()


class TestCheckRecalls(RpcHookContract):
    def make_hook(self) -> RpcHook:
        return CheckRecalls()


class TestParkTimed(PutMessageHookContract):
    interesting = (
        {"TIMER_DELAY_SEC": "3"},
        {"TIMER_DELAY_MS": "-3", "TAGS": "a"},
        {"TIMER_DELIVER_MS": "1", "DELAY": "3"},
        {"TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": "1"},
    )

    def make_hook(self) -> PutMessageHook:
        return ParkTimed(Config(), lambda: 1_700_000_000_000)


class TestMessageTrace(ClientHookContract):
    def make_hook(self) -> ClientHook:
        return MessageTrace()


class TestOpenTelemetry(ClientHookContract):
    def make_hook(self) -> ClientHook:
        return OpenTelemetryHook(TracerProvider())
