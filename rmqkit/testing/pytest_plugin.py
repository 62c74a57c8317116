"""Options and markers for the tests of plugins, which start brokers. In a conftest: `pytest_plugins =
["rmqkit.testing.pytest_plugin"]`.

--store NAME        store of the brokers of `rmqkit.testing.broker` in tests that do not choose one
--transport SCHEME  transport of these brokers, likewise

Tests of one particular store or transport carry a marker. With another option they are deselected, and the
summary gives the reason. The summary also counts the tests that used the chosen store or transport; zero is
an error, because a run that tests nothing must not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from rmqkit.config import Config
from rmqkit.errors import RmqError
from rmqkit.plugin import loader
from rmqkit.testing.choice import DURABLE_STORE, SCHEME, STORE, Choice, choosing

MARKERS = (
    (
        "durable_store: needs a store that keeps everything over a restart; without the option --store it"
        " gets mmap"
    ),
    "only_store(*names, why): is about these stores, or brings one of its own when none is named",
    "only_transport(*schemes, why): is about these transports, or brings one of its own when none is named",
)
#: Stores that lose their messages at a restart.
_FORGETTING = ("memory",)
_PLUGIN = "rmqkit-choices"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rmqkit")
    group.addoption(
        "--store", metavar="NAME", help="the store of brokers whose test does not name one (default memory)"
    )
    group.addoption(
        "--transport",
        metavar="SCHEME",
        help="the transport of brokers whose test does not name one (default tcp)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for text in MARKERS:
        config.addinivalue_line("markers", text)
    store, scheme = config.getoption("--store"), config.getoption("--transport")
    try:
        for kind, name in (("stores", store), ("transports", scheme)):
            if name is not None:
                loader.load(Config()).chosen(kind, name)
    except RmqError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(_Choices(store, scheme), _PLUGIN)


class _Choices:
    """Deselects tests, applies the choice to each test, and counts."""

    def __init__(self, store: str | None, scheme: str | None) -> None:
        self._store, self._scheme = store, scheme
        self._used: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._ran = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        reasons = {item: why for item in items if (why := next(self._unfit(item), None))}
        self._left_out.update(reasons.values())
        if reasons:
            config.hook.pytest_deselected(items=list(reasons))
            items[:] = [item for item in items if item not in reasons]

    def _unfit(self, item: pytest.Item) -> Iterator[str]:
        """The reason why a test does not apply to the choice."""
        if self._store in _FORGETTING and any(item.iter_markers("durable_store")):
            yield f"needs a restart that store {self._store} forgets everything in"
        for name, value in (("only_store", self._store), ("only_transport", self._scheme)):
            for marker in item.iter_markers(name):
                if value is not None and value not in marker.args:
                    yield marker.kwargs["why"]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool | None, bool | None]:
        durable = any(item.iter_markers("durable_store"))
        store = self._store or (DURABLE_STORE if durable else STORE)
        with choosing(Choice(store, self._scheme or SCHEME, self._scheme is not None)) as choice:
            ran = yield
        self._used.update(choice.used)
        self._ran += 1
        return ran

    def _chosen(self) -> list[tuple[str, str, int]]:
        """(kind, name, number of tests that used it) for each given option."""
        given = (("store", self._store), ("transport", self._scheme))
        return [(kind, name, self._used[kind]) for kind, name in given if name is not None]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        whole = exitstatus == pytest.ExitCode.OK and not session.config.getoption("collectonly")
        if whole and not all(used for _, _, used in self._chosen()):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for kind, name, used in self._chosen():
            terminalreporter.write_line(f"{kind} {name}: used by {used} of {self._ran} tests")
        for why, count in sorted(self._left_out.items()):
            terminalreporter.write_line(f"left out: {count} {'test' if count == 1 else 'tests'}: {why}")
