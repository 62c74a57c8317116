"""Lines of events about runs of sends, and which runs get one line for each connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import SendHeader
from rmqkit.plugin.store import Appended
from rmqkit.protocol.command import Command
from rmqkit.speedups import IN_USE
from rmqkit_hook_audit import value_lines


class Lines(Protocol):
    """The lines of a run of sends (`rmqkit_hook_audit.value_lines`)."""

    def json_lines(
        self,
        messages: Sequence[PutMessage],
        places: Sequence[Appended],
        heads: Sequence[bytes],
        stops: Sequence[int],
        topic: str,
        max_key_bytes: int,
        other: Callable[[int], bytes],
    ) -> list[bytes]: ...
    def are_alike(self, requests: Sequence[Command], headers: Sequence[SendHeader], word: bytes) -> bool: ...


if IN_USE:
    from rmqkit_hook_audit import _lines

lines: Lines = _lines if IN_USE else value_lines

__all__ = ["Lines", "lines"]
