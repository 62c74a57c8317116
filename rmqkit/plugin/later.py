"""Delivery at a later time: the port between a plugin that keeps messages until they are due, and whoever has
a message for later. Callers use `rmqkit.toolkit.later`."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import PutMessageHook


class Level(NamedTuple):
    """After the delay of a level of `messageDelayLevel`, counted from 1. A level beyond the last counts as
    the last."""

    level: int


class Time(NamedTuple):
    """At a time in ms since 1970 by the broker's clock, or as soon after it as the plugin can, never
    earlier."""

    time_ms: int


#: When a message is to be delivered.
Due = Level | Time


class LaterDelivery(PutMessageHook):
    """A put hook whose plugin keeps messages and delivers them when they are due: the delay levels, a timer.
    The hook parks what it has marked. `PutMessageHookContract` of `rmqkit.testing.hooks` has the contract."""

    @abstractmethod
    def mark(self, message: PutMessage, due: Due, now_ms: int) -> bool:
        """Set the properties by which the hook will recognise the message and park it, so that it is
        delivered in its present topic and queue. Returns False, without a change, when this plugin cannot
        deliver it at that time or level; others are then asked. Raises MessageIllegal when the properties
        become too long."""


__all__ = ["Due", "LaterDelivery", "Level", "Time"]
