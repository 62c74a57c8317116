"""Decides whether a connection may stay, by the request hooks that guard its server."""

from __future__ import annotations

from rmqkit.plugin.hook_runner import HookEntry, Hooks
from rmqkit.plugin.request import Caller
from rmqkit.plugin.request_hooks import RpcHook

Entries = tuple[HookEntry[RpcHook], ...]


def guarding(hooks: Hooks[RpcHook], server: str) -> Entries:
    """The hooks that guard a server, in order."""
    return tuple(
        entry for entry in hooks.entries if entry.hook.servers is None or server in entry.hook.servers
    )


class Admission:
    """The hooks of one server that look at its connections."""

    def __init__(self, entries: Entries) -> None:
        self._entries = tuple(
            entry for entry in entries if type(entry.hook).connected is not RpcHook.connected
        )

    def check(self, caller: Caller) -> None:
        """Ask the hooks whether a connection may be served. Raises RequestRefused when a hook refuses the
        connection, or fails."""
        for entry in self._entries:
            try:
                entry.call("connected", caller)
            except Exception as error:
                raise entry.refusal("connected", error) from error
