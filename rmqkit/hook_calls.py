"""Calling hooks so that what one of them does harms nobody else: its errors are logged with its plugin's name, its slowness is noticed once."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Generic, TypeVar

from rmqkit.errors import PluginError, RequestRefused
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)
H_co = TypeVar("H_co", covariant=True)
#: Everything else of a broker waits while a hook runs; one that takes longer is named in the log.
SLOW_CALL_MS = 20
_SLOW_CALL_S = SLOW_CALL_MS / 1000


class HookEntry(Generic[H_co]):
    """One hook with the names of itself and its plugin. `failures` counts the calls that raised what they may not raise."""

    __slots__ = ("_said", "failures", "hook", "name", "plugin", "title")

    def __init__(self, kind: str, name: str, plugin: str, hook: H_co) -> None:
        self.hook = hook
        self.name = name
        self.plugin = plugin
        self.title = f"{kind} {name!r}" + (f" of plugin {plugin!r}" if plugin else "")
        self.failures = 0
        self._said: set[str] = set()

    def call(self, method: str, *arguments: object) -> None:
        """Raises what the hook raises."""
        began_s = perf_counter()
        result = getattr(self.hook, method)(*arguments)
        took_s = perf_counter() - began_s
        if result is not None or took_s > _SLOW_CALL_S:
            self._odd(method, result, took_s)

    def tell(self, method: str, *arguments: object) -> None:
        """Call a hook that may only look: what it raises changes nothing."""
        began_s = perf_counter()
        try:
            result = getattr(self.hook, method)(*arguments)
        except Exception:  # noqa: BLE001 - the contract of hooks: one that breaks harms nobody
            self.failed(method)
            return
        took_s = perf_counter() - began_s
        if result is not None or took_s > _SLOW_CALL_S:
            self._odd(method, result, took_s)

    def teller(self, method: str) -> Callable[[object], None]:
        """`tell` of one method of one argument, for what is called thousands of times a second. It is looked up now."""
        call, odd, failed, slow_s = getattr(self.hook, method), self._odd, self.failed, _SLOW_CALL_S

        def tell(argument: object) -> None:
            began_s = perf_counter()
            try:
                result = call(argument)
            except Exception:  # noqa: BLE001 - as in tell
                failed(method)
                return
            took_s = perf_counter() - began_s
            if result is not None or took_s > slow_s:
                odd(method, result, took_s)

        return tell

    def demand(self, method: str, *arguments: object) -> None:
        """Call a hook whose word counts: whatever it raises comes out as RequestRefused, with SYSTEM_ERROR unless it says otherwise."""
        try:
            self.call(method, *arguments)
        except RequestRefused:
            raise
        except Exception as error:
            self.failed(method)
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{self.title} failed: {type(error).__name__}: {error}") from error

    def failed(self, method: str) -> None:
        """To be called in an except clause: counts, and logs the first failure with its traceback, later ones at each power of two."""
        self.failures += 1
        if self.failures == 1:
            _log.exception("%s failed in %s", self.title, method)
        elif self.failures & (self.failures - 1) == 0:
            _log.exception("%s has failed %s times, now in %s", self.title, self.failures, method)

    def _odd(self, method: str, result: object, took_s: float) -> None:
        if took_s > _SLOW_CALL_S:
            self._say_once("slow", f"{self.title} took {took_s * 1000:.0f} ms in {method}; everything else waits for it meanwhile")
        if inspect.iscoroutine(result):
            result.close()
        if result is not None:
            self._say_once("returned", f"{self.title} returned something ({type(result).__name__}) from {method}; a hook returns nothing")

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s", text)


class Hooks(Generic[H_co]):
    """Hooks of one kind, in the order in which they are called."""

    def __init__(self, kind: str, entries: Iterable[HookEntry[H_co]] = ()) -> None:
        self.kind = kind
        self.entries = tuple(entries)

    @classmethod
    def of(cls, kind: str, hooks: Iterable[H_co]) -> Hooks[H_co]:
        """Hooks that no plugin registered, named by their classes; what is a `Hooks` already stays as it is."""
        if isinstance(hooks, cls):
            return hooks
        return cls(kind, [HookEntry(kind, type(hook).__name__, "", hook) for hook in hooks])

    def checked(self, interface: type | tuple[type, ...], methods: Iterable[str]) -> Hooks[H_co]:
        """These hooks. Raises PluginError for one that does not implement the interface, or by coroutine functions."""
        for entry in self.entries:
            if not isinstance(entry.hook, interface):
                wanted = " or ".join(kind.__name__ for kind in (interface if isinstance(interface, tuple) else (interface,)))
                raise PluginError(f"{entry.title} is no {wanted}, but {type(entry.hook).__name__}")
            for method in methods:
                if inspect.iscoroutinefunction(getattr(entry.hook, method, None)):
                    raise PluginError(
                        f"{entry.title}: {method} is a coroutine function, but hooks are plain functions; leave the work to a service"
                    )
        return self

    def tell(self, method: str, *arguments: object) -> None:
        """Call all; what they raise changes nothing."""
        for entry in self.entries:
            entry.tell(method, *arguments)

    def teller(self, method: str) -> Callable[[object], None] | None:
        """As HookEntry.teller, for all of them; None when there is none."""
        tellers = tuple(entry.teller(method) for entry in self.entries)
        if len(tellers) <= 1:
            return tellers[0] if tellers else None

        def tell(argument: object) -> None:
            for each in tellers:
                each(argument)

        return tell

    def __iter__(self) -> Iterator[H_co]:
        return (entry.hook for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)
