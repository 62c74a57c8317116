"""Calls the SendMessageHooks of a broker around its sends (behaviour sheet, C14; Java:
AbstractSendMessageProcessor)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.errors import RequestRefused
from rmqkit.plugin.hook_runner import HookEntry, Hooks
from rmqkit.plugin.hooks import EachSendHook, SendMessageHook, SendRun

Entry = HookEntry[SendMessageHook]


class SendHooks:
    """The plugins' hooks of sends, as calls for a whole run. Raises PluginError for a hook of another kind. A
    method that a hook does not override costs nothing.

    asks   whether a hook may refuse sends
    after  shows the result of sends to all hooks; None when no hook wants it
    """

    def __init__(self, hooks: Hooks[SendMessageHook]) -> None:
        entries = hooks.checked(SendMessageHook, ("before", "after", "before_each", "after_each")).entries
        #: The hooks that may refuse, each with those before it that want the result.
        self._asking = [
            (entry, Hooks(hooks.kind, _those_with("after", entries[:number])).teller("after"))
            for number, entry in enumerate(entries)
            if _has(entry.hook, "before")
        ]
        self.asks = bool(self._asking)
        self.after = Hooks(hooks.kind, _those_with("after", entries)).teller("after")

    def before(self, sends: SendRun) -> dict[int, RequestRefused]:
        """The sends refused by the hooks. Hooks before the refusing one get the end at once; later ones do
        not see the send."""
        refused: dict[int, RequestRefused] = {}
        left: Sequence[int] = ()
        part = sends
        for entry, tell in self._asking:
            found = entry.refusals("before", part, failures_refuse=entry.hook.fail_closed)
            if found:
                left = left or range(len(sends))
                for at, refusal in found.items():
                    refused[left[at]] = refusal
                    if tell is not None:
                        tell(part.select([at]).ended(refusal.code, refusal.remark))
                left = [at for at in left if at not in refused]
                if not left:
                    break
                part = sends.select(left)
        return refused


def _those_with(method: str, entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if _has(entry.hook, method)]


def _has(hook: SendMessageHook, method: str) -> bool:
    """Whether a hook overrides a method."""
    own = getattr(type(hook), method)
    if own is getattr(EachSendHook, method):
        return getattr(type(hook), f"{method}_each") is not getattr(EachSendHook, f"{method}_each")
    return own is not getattr(SendMessageHook, method)


__all__ = ["SendHooks"]
