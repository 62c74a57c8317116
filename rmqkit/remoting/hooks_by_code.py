"""Assigns request hooks to the request codes that they want."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.command import Command
from rmqkit.remoting.admission import Entries


class HooksOfCode(NamedTuple):
    """The hooks that see the requests of a code, and those of them that see the answers."""

    before: Entries
    after: Entries


NO_HOOKS = HooksOfCode((), ())


class HooksByCode:
    """Request code -> the hooks that want it: those in `by_code`, or else `for_all`."""

    def __init__(self, entries: Entries) -> None:
        self._waiting = tuple(entry for entry in entries if type(entry.hook).waited is not RpcHook.waited)
        self._entries = entries = tuple(
            entry for entry in entries if entry.hook.sees_requests or entry.hook.sees_answers
        )
        named = {int(code) for entry in entries for code in entry.hook.codes or ()}
        self.for_all = self._of(None)
        self.by_code = {code: self._of(code) for code in named}

    def _of(self, code: int | None) -> HooksOfCode:
        entries = tuple(
            entry for entry in self._entries if entry.hook.codes is None or code in entry.hook.codes
        )
        return HooksOfCode(
            tuple(entry for entry in entries if entry.hook.sees_requests),
            tuple(entry for entry in entries if entry.hook.sees_answers),
        )

    def of(self, code: int) -> HooksOfCode:
        return self.by_code.get(code, self.for_all)

    def impatient(self, waited_s: float) -> Entries:
        """The hooks that want to see requests which have waited for so long."""
        return tuple(entry for entry in self._waiting if waited_s >= entry.hook.patience_s)

    def parts(self, requests: Sequence[Command]) -> list[tuple[Entries, slice]]:
        """The neighbours among requests whose answers the same hooks see, with these hooks."""
        if not self.by_code or len(requests) == 1 or len({request.code for request in requests}) == 1:
            return [(self.of(requests[0].code).after, slice(len(requests)))]
        parts: list[tuple[Entries, slice]] = []
        for at, request in enumerate(requests):
            hooks = self.of(request.code).after
            start = parts.pop()[1].start if parts and parts[-1][0] == hooks else at
            parts.append((hooks, slice(start, at + 1)))
        return parts
