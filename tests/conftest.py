"""For the whole suite: the options --store and --transport, and Hypothesis without deadlines (machines differ
and are shared), with examples that do not depend on the last run and files outside the checkout."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from time import thread_time

import anyio.to_thread
import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies
from hypothesis.configuration import set_hypothesis_home_dir

from rmqkit.log_limit import peer_lines
from rmqkit.plugin import hook_runner
from rmqkit.testing.choice import chosen
from tests import postgres
from tests.threads import at_once

pytest_plugins = ["rmqkit.testing.pytest_plugin"]

# What is collected stays, so there is nothing to look for meanwhile: see pytest_collection_finish.
gc.disable()

#: Parts of paths, in the order of the run.
_LONGEST = ("faults/", "sim/", "test_examples.py", "cli/", "testing/", "stores/")

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"rmqkit-hypothesis-{os.getuid()}")
settings.register_profile(
    "rmqkit", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rmqkit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--users",
        metavar="LIST",
        type=Path,
        help="with --store or --transport: run only the test files in this list; when there is none, run all"
        " and list those with a test that used the choice",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--users") is not None:
        config.pluginmanager.register(_Users(config.getoption("--users")))


class _Users:
    """The test files whose brokers use the chosen store or transport: the others need not run for each of
    them. A file's tests may share a broker, which counts for the first one alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._listed = set(file.read_text().splitlines()) if file.exists() else None
        self._found: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._listed is None:
            return
        left_out = [item for item in items if _file_of(item) not in self._listed]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _file_of(item) in self._listed]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool | None, bool | None]:
        ran = yield
        if chosen().used:
            self._found.add(_file_of(item))
        return ran

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """They may use another choice."""
        self._found.update(map(_file_of, items))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._listed is None and exitstatus == pytest.ExitCode.OK:
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text("\n".join(sorted(self._found)))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders whose files take longest come first: then all processes of a run end at about the same
    time."""

    def place(item: pytest.Item) -> int:
        file = _file_of(item)
        return next((at for at, part in enumerate(_LONGEST) if f"/{part}" in file), len(_LONGEST))

    items.sort(key=place)


@given(strategies.none())
def _first_property(_: None) -> None:
    """In the first property of a process Hypothesis looks for what else refers to its random numbers, and
    would not find that behind `gc.freeze`."""


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look at it again. By
    default it looks at the rest so often that this takes a fifteenth of the time."""
    _first_property()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(autouse=True)
def every_line_is_logged() -> None:
    """The log lines of one test do not count for the next."""
    peer_lines.reset()


@pytest.fixture(autouse=True)
def hooks_are_slow_by_their_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of hooks are measured in CPU time, because on a busy machine any call may take longer."""
    monkeypatch.setattr(hook_runner, "perf_counter", thread_time)


@pytest.fixture(autouse=True)
def threads_do_not_move_the_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock that jumps when every task waits, work for a thread is done at once: the clock would not
    wait for the thread."""
    if "autojump_clock" not in request.fixturenames or request.node.get_closest_marker("real_threads"):
        return

    for module in (trio.to_thread, anyio.to_thread):
        monkeypatch.setattr(module, "run_sync", at_once(module.run_sync))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    """A server of PostgreSQL; without its programs the tests that need it are skipped."""
    folder = postgres.programs()
    if folder is None:
        pytest.skip(
            "this machine has no PostgreSQL: initdb is neither on the PATH nor in /usr/lib/postgresql"
        )
    with postgres.postgres(folder) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database for SQLAlchemy."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    server: postgres.Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()
