"""Filters in Python, by name: expression type "PYTHON".

A filter is a function of an installed distribution, in the entry point group `rmqkit.filters`. Its calls run
in a thread, window by window, so that a filter that does not return cannot hold the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import entry_points
from inspect import signature
from urllib.parse import parse_qsl

import trio

from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.limits import MAX_FILTER_THREADS
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.model.subscription import PYTHON, SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack
from rmqkit_filter.limits import MAX_FILTER_EXPRESSION_LENGTH, MAX_FILTER_PARAMETERS

_log = logging.getLogger(__name__)
ENTRY_POINT_GROUP = "rmqkit.filters"
#: Whether a message matches; the parameters of the expression are keyword arguments, all of them texts.
PythonFunction = Callable[..., bool]


def installed() -> dict[str, Callable[[], PythonFunction]]:
    """Name -> a function that imports the filter."""
    return {point.name: point.load for point in entry_points(group=ENTRY_POINT_GROUP)}


class PythonFilter(FilterServer):
    """Expressions `NAME` or `NAME?parameter=value&parameter=value`, percent-encoded as a query string.

    A filter that raises, or whose window takes longer than `timeout_ms`, is disabled until the broker starts
    again: it is logged once, and its consumers are refused with SYSTEM_ERROR and the reason.

    find  returns name -> a function that returns the filter; called when the first expression comes, the
          functions when their filter is first subscribed to
    """

    expression_type = PYTHON

    def __init__(
        self, find: Callable[[], Mapping[str, Callable[[], PythonFunction]]], timeout_ms: int
    ) -> None:
        self._find = find
        self._timeout_ms = timeout_ms
        self._loaded: dict[str, PythonFunction] = {}
        self._disabled: dict[str, str] = {}
        self._turns: dict[str, trio.CapacityLimiter] = {}

    @cached_property
    def _loaders(self) -> Mapping[str, Callable[[], PythonFunction]]:
        # A search through all installed distributions, which brokers without such filters do without.
        return self._find()

    @cached_property
    def _threads(self) -> trio.CapacityLimiter:
        return trio.CapacityLimiter(MAX_FILTER_THREADS * (1 + len(self._loaders)))

    def disabled(self) -> Mapping[str, str]:
        return self._disabled

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        if subscription.expression_type != PYTHON:
            raise ValueError(f"{subscription.expression_type!r} is not the expression type PYTHON")
        name, parameters = self._parsed(subscription.sub_string)
        function = self._loaded[name]
        turns = self._turns.setdefault(name, trio.CapacityLimiter(MAX_FILTER_THREADS))

        def verdicts(records: Sequence[Buffer]) -> list[bool]:
            return [_matches(function, parameters, record) for record in records]

        async def matches(records: Sequence[Buffer]) -> Sequence[bool]:
            # Another call may have disabled the filter while this one waited for its turn.
            async with turns:
                if name in self._disabled:
                    raise self._refusal(name)
                return await self._call(name, verdicts, [bytes(record) for record in records])

        return CompiledFilter(records_async=matches)

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        self._parsed(expression)
        return SubscriptionData(
            topic=topic, sub_string=expression, sub_version=version, expression_type=PYTHON
        )

    def _parsed(self, expression: str) -> tuple[str, dict[str, str]]:
        """The name, which is loaded now, and the parameters, which fit the function. Raises ValueError."""
        if len(expression) > MAX_FILTER_EXPRESSION_LENGTH:
            raise ValueError(
                f"the expression has {len(expression)} characters, at most {MAX_FILTER_EXPRESSION_LENGTH}"
                " are allowed"
            )
        name, _, query = expression.strip().partition("?")
        pairs = (
            parse_qsl(query, True, True, errors="strict", max_num_fields=MAX_FILTER_PARAMETERS)
            if query
            else []
        )
        parameters = dict(pairs)
        if len(parameters) < len(pairs):
            raise ValueError("a parameter has two values")
        function = self._function(name)
        try:
            signature(function).bind(None, **parameters)
        except TypeError as error:
            raise ValueError(f"the filter {name} is not called so: {error}") from error
        return name, parameters

    def _function(self, name: str) -> PythonFunction:
        """The installed filter of this name. Raises ValueError when it is unknown, or cannot be loaded."""
        if name not in self._loaders:
            known = ", ".join(sorted(self._loaders)) or "none"
            raise ValueError(f"no filter {name[:100]!r} is installed on the broker; there are: {known}")
        if name not in self._loaded:
            try:
                self._loaded[name] = self._loaders[name]()
            except Exception as error:
                _log.exception("the filter %s cannot be loaded", name)
                raise ValueError(f"the filter {name} cannot be loaded: {error!r}"[:500]) from error
        return self._loaded[name]

    async def _call(
        self, name: str, verdicts: Callable[[Sequence[Buffer]], list[bool]], records: Sequence[Buffer]
    ) -> Sequence[bool]:
        """Run a filter over records, in a thread and with a time-out. Raises RequestRefused. Cancelled: the
        thread is left to end by itself."""
        with trio.move_on_after(self._timeout_ms / 1000):
            try:
                return await trio.to_thread.run_sync(
                    verdicts, records, abandon_on_cancel=True, limiter=self._threads
                )
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a filter raises disables it
                raise self._disable(name, f"it raised {error!r}"[:500]) from None
        raise self._disable(name, f"it took more than {self._timeout_ms} ms for {len(records)} messages")

    def _disable(self, name: str, reason: str) -> RequestRefused:
        if name not in self._disabled:
            self._disabled[name] = reason
            _log.error("the filter %s is disabled until the broker starts again: %s", name, reason)
        return self._refusal(name)

    def _refusal(self, name: str) -> RequestRefused:
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the filter {name} is disabled on this broker: {self._disabled[name]}"
        )


def _matches(function: PythonFunction, parameters: Mapping[str, str], record: Buffer) -> bool:
    """A damaged record does not match. Raises what the filter raises."""
    try:
        message: StoredMessage = unpack(record)
    except DecodeError:
        return False
    return bool(function(message, **parameters))
