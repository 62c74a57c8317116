"""Helpers of the broker's tests: settings without files or environment, and a client."""

from __future__ import annotations

from typing import Any

from rmqkit import config as settings
from rmqkit.broker.clients import ClientInfo
from rmqkit.config import Config
from rmqkit.testing.peer import FakePeer


def config_of(**keys: Any) -> Config:
    """Default settings, except for some of broker.conf's keys."""
    return settings.load(environ={}, flags=keys)


def client(client_id: str = "10.0.0.1@1", peer: FakePeer | None = None, seen_ms: int = 0) -> ClientInfo:
    return ClientInfo(client_id, peer or FakePeer(), "JAVA", 400, seen_ms)
