"""The hook and its settings."""

from __future__ import annotations

import re

import msgspec

from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.plugin.hooks import EachPutHook


class RedactSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The table [plugins.redact]. `pattern` is a regular expression over the bytes of a body; no `topics`
    means all."""

    pattern: str = r"\d{4}-\d{4}-\d{4}-\d{4}"
    topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern.encode())
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error


class Redact(EachPutHook):
    """Runs before other hooks see the message. Compressed bodies pass as they are: what is in them was
    hidden by the producer already."""

    def __init__(self, settings: RedactSettings) -> None:
        self._pattern = re.compile(settings.pattern.encode())
        self._topics = frozenset(settings.topics)

    def before_each(self, message: PutMessage) -> None:
        if message.sys_flag & COMPRESSED or (self._topics and message.topic not in self._topics):
            return
        message.body = self._pattern.sub(lambda found: b"*" * len(found[0]), message.body)
