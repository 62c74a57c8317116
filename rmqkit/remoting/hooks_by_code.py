"""Assigns request hooks to the request codes that they want."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.plugin.hook_runner import HookEntry, Hooks
from rmqkit.plugin.hooks import RpcHook
from rmqkit.protocol.command import Command

Entries = tuple[HookEntry[RpcHook], ...]


class HooksByCode:
    """Request code -> the hooks that want it: those in `by_code`, or else `for_all`."""

    def __init__(self, hooks: Hooks[RpcHook]) -> None:
        named = {int(code) for hook in hooks for code in hook.codes or ()}
        self.for_all: Entries = tuple(entry for entry in hooks.entries if entry.hook.codes is None)
        self.by_code: dict[int, Entries] = {
            code: tuple(
                entry for entry in hooks.entries if entry.hook.codes is None or code in entry.hook.codes
            )
            for code in named
        }

    def of(self, code: int) -> Entries:
        return self.by_code.get(code, self.for_all)

    def parts(self, requests: Sequence[Command]) -> list[tuple[Entries, slice]]:
        """The neighbours among requests that the same hooks want to see, with these hooks."""
        if not self.by_code or len(requests) == 1 or len({request.code for request in requests}) == 1:
            return [(self.of(requests[0].code), slice(len(requests)))]
        parts: list[tuple[Entries, slice]] = []
        for at, request in enumerate(requests):
            hooks = self.of(request.code)
            start = parts.pop()[1].start if parts and parts[-1][0] == hooks else at
            parts.append((hooks, slice(start, at + 1)))
        return parts
