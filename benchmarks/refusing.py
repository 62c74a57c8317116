"""Hooks that check each send and refuse those to some topics, for `benchmarks.instructions`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.plugin.hooks import EachSendHook, Refusals, SendContext, SendMessageHook, SendRun
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import ResponseCode

_CLOSED_TOPICS = frozenset({"closed"})


class RefusesRuns(SendMessageHook):
    """Refuses sends to some topics, by the columns of a run."""

    def before(self, sends: SendRun) -> Refusals | None:
        refused = {
            at: RequestRefused(ResponseCode.NO_PERMISSION, "this topic is closed")
            for at, header in enumerate(sends.headers)
            if header.topic in _CLOSED_TOPICS
        }
        return refused or None


class RefusesEach(EachSendHook):
    """The same, one send at a time."""

    def before_each(self, context: SendContext) -> None:
        if context.topic in _CLOSED_TOPICS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "this topic is closed")


class RefusingPlugin:
    """Registers one such hook."""

    def __init__(self, hook: SendMessageHook) -> None:
        self._hook = hook

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        register("refusing", self._hook)
