"""What the broker's tests share: a clock the test moves, and settings without files or environment."""

from __future__ import annotations

from typing import Any

from attrs import define

from rmqkit import config as settings
from rmqkit.broker.clients import ClientInfo
from rmqkit.config import Config
from rmqkit.testing.peer import FakePeer


@define
class HandClock:
    """Wall-clock time that stands still until the test moves it."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


def config_of(**keys: Any) -> Config:
    """Default settings, save for some of broker.conf's keys."""
    return settings.load(environ={}, flags=keys)


def client(client_id: str = "10.0.0.1@1", peer: FakePeer | None = None, seen_ms: int = 0) -> ClientInfo:
    return ClientInfo(client_id, peer or FakePeer(), "JAVA", 400, seen_ms)
