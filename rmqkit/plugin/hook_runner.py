"""Calls hooks and isolates their faults: errors are logged with the plugin's name, and slow hooks are logged
once."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Generic, TypeVar

from rmqkit.errors import PluginError, RequestRefused
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)
H_co = TypeVar("H_co", covariant=True)
#: A hook blocks the whole broker; one that takes longer is logged.
SLOW_CALL_MS = 20
_SLOW_CALL_S = SLOW_CALL_MS / 1000


class HookEntry(Generic[H_co]):
    """One hook with its name and the name of its plugin. `failures` counts the calls that raised an exception
    that is not allowed."""

    __slots__ = ("_reported", "failures", "hook", "name", "plugin", "title")

    def __init__(self, kind: str, name: str, plugin: str, hook: H_co) -> None:
        self.hook = hook
        self.name = name
        self.plugin = plugin
        self.title = f"{kind} {name!r}" + (f" of plugin {plugin!r}" if plugin else "")
        self.failures = 0
        self._reported: set[str] = set()

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the hook. Raises what the hook raises."""
        began_s = perf_counter()
        result = getattr(self.hook, method)(*arguments)
        took_s = perf_counter() - began_s
        if result is not None or took_s > _SLOW_CALL_S:
            self.report_misuse(method, result, took_s)

    def notify(self, method: str, *arguments: object) -> None:
        """Call a hook that only observes: its exceptions are logged and counted, and change nothing."""
        began_s = perf_counter()
        try:
            result = getattr(self.hook, method)(*arguments)
        except Exception:  # noqa: BLE001 - a failure of a hook must not affect the broker
            self.failed(method)
            return
        took_s = perf_counter() - began_s
        if result is not None or took_s > _SLOW_CALL_S:
            self.report_misuse(method, result, took_s)

    def refusals(
        self, method: str, run: Sequence[object], *arguments: object, failures_refuse: bool = True
    ) -> Mapping[int, RequestRefused]:
        """Call a hook that may refuse elements of a run: index -> refusal. A hook that raises refuses the
        whole run. Exceptions other than RequestRefused become SYSTEM_ERROR, and so does a result that is not
        such a mapping. With `failures_refuse` false these failures refuse nothing, but are counted and
        logged."""
        began_s = perf_counter()
        try:
            refused = getattr(self.hook, method)(run, *arguments)
            took_s = perf_counter() - began_s
            if took_s > _SLOW_CALL_S:
                self.report_misuse(method, None, took_s)
            if not refused and (refused is None or type(refused) is dict):
                return {}
            found: Mapping[int, Exception] = {_index(at, run): error for at, error in refused.items()}
        except Exception as error:  # noqa: BLE001 - a broken check must admit nothing
            if isinstance(error, RequestRefused) or failures_refuse:
                return dict.fromkeys(range(len(run)), self.refusal(method, error))
            self.failed(method, error)
            return {}
        refusals: dict[int, RequestRefused] = {}
        for at, cause in found.items():
            refusal = self.refusal(method, cause)
            if refusal is cause or failures_refuse:
                refusals[at] = refusal
        return refusals

    def refusal(self, method: str, error: Exception) -> RequestRefused:
        """What an error of a hook that may refuse means: the error itself if it is a RequestRefused, else
        SYSTEM_ERROR, counted and logged as a failure."""
        if isinstance(error, RequestRefused):
            return error
        self.failed(method, error)
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"{self.title} failed: {type(error).__name__}: {error}"
        )

    def failed(self, method: str, error: Exception | None = None) -> None:
        """Count a failure. It is the exception being handled unless `error` is given. Logs the first failure
        with its traceback, later ones at each power of two."""
        self.failures += 1
        cause = True if error is None else error
        if self.failures == 1:
            _log.error("%s failed in %s", self.title, method, exc_info=cause)
        elif self.failures & (self.failures - 1) == 0:
            _log.error("%s has failed %s times, now in %s", self.title, self.failures, method, exc_info=cause)

    def report_misuse(self, method: str, result: object, took_s: float) -> None:
        """Log a call that took long, or returned something, unless that was logged before."""
        if took_s > _SLOW_CALL_S:
            self._report_once(
                "slow",
                f"{self.title} took {took_s * 1000:.0f} ms in {method}; everything else waits for it"
                " meanwhile",
            )
        if inspect.iscoroutine(result):
            result.close()
        if result is not None:
            self._report_once(
                "returned",
                f"{self.title} returned something ({type(result).__name__}) from {method}; a hook returns"
                " nothing",
            )

    def _report_once(self, what: str, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("%s", text)


def _index(at: object, run: Sequence[object]) -> int:
    """An index that a hook returned, after a check. Raises TypeError for a value that is not an index of the
    run."""
    if isinstance(at, int) and 0 <= at < len(run):
        return at
    raise TypeError(f"{at!r} is not an index of a run of {len(run)} requests")


class Hooks(Generic[H_co]):
    """Hooks of one kind, in the order in which they are called."""

    def __init__(self, kind: str, entries: Iterable[HookEntry[H_co]] = ()) -> None:
        self.kind = kind
        self.entries = tuple(entries)

    @classmethod
    def of(cls, kind: str, hooks: Iterable[H_co]) -> Hooks[H_co]:
        """Hooks that were not registered by a plugin, named by their classes. A `Hooks` object is returned
        unchanged."""
        if isinstance(hooks, cls):
            return hooks
        return cls(kind, [HookEntry(kind, type(hook).__name__, "", hook) for hook in hooks])

    def checked(self, interface: type | tuple[type, ...], methods: Iterable[str]) -> Hooks[H_co]:
        """These hooks. Raises PluginError for a hook that does not implement the interface, or implements a
        method as a coroutine function."""
        for entry in self.entries:
            if not isinstance(entry.hook, interface):
                wanted = " or ".join(
                    kind.__name__ for kind in (interface if isinstance(interface, tuple) else (interface,))
                )
                raise PluginError(f"{entry.title} must be a {wanted}, not {type(entry.hook).__name__}")
            for method in methods:
                if inspect.iscoroutinefunction(getattr(entry.hook, method, None)):
                    raise PluginError(
                        f"{entry.title}: {method} is a coroutine function, but hooks are plain functions;"
                        " leave the work to a service"
                    )
        return self

    def notify(self, method: str, *arguments: object) -> None:
        """Call all hooks; their exceptions are logged and counted, and change nothing."""
        for entry in self.entries:
            entry.notify(method, *arguments)

    def teller(self, method: str) -> Callable[[object], None] | None:
        """`notify` of one method with one argument, for calls that occur thousands of times a second: the
        methods are looked up once, here. None without hooks."""
        if not self.entries:
            return None
        calls = tuple((getattr(entry.hook, method), entry) for entry in self.entries)
        slow_s = _SLOW_CALL_S

        def notify(argument: object) -> None:
            began_s = perf_counter()
            for call, entry in calls:
                try:
                    result = call(argument)
                except Exception:  # noqa: BLE001 - as in HookEntry.notify
                    entry.failed(method)
                    result = None
                ended_s = perf_counter()
                if result is not None or ended_s - began_s > slow_s:
                    entry.report_misuse(method, result, ended_s - began_s)
                began_s = ended_s

        return notify

    def __iter__(self) -> Iterator[H_co]:
        return (entry.hook for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)
