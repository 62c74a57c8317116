"""The hook and the service keep their contracts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rmqkit.config import Config
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.service import Service
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.hooks import PutMessageHookContract
from rmqkit.testing.service import ServiceContract
from rmqkit_dedup.hook import DropRepeated
from rmqkit_dedup.service import DedupService


class TestHook(PutMessageHookContract):
    """Over a topic whose window is known."""

    def make_hook(self) -> PutMessageHook:
        config = TopicConfig(topic_name="T", attributes={"dedup.window": "1m"})
        broker: Any = SimpleNamespace(
            clock=FakeClock(), topics=SimpleNamespace(configs={"T": config}, on_turn=[])
        )
        hook = DropRepeated()
        hook.open(broker)
        hook.windows["T"].fill([], 0)
        return hook


class TestService(ServiceContract):
    def make_service(self, config: Config) -> Service:
        return DedupService()
