"""The plugin of pytest that comes with rmqkit: the fixtures `rocketmq` and `rocketmq_client`, and the marker
`rocketmq`. pytest loads it by its entry point. Brokers and clients are imported by the first test that uses
one of the fixtures.

    @pytest.mark.rocketmq(brokers=2, store="mmap", settings={"autoCreateTopicEnable": False})
    async def test_orders(rocketmq, rocketmq_client): ...

Markers of a test, its class and its module are combined; the closest one prevails. The settings `rocketmq` of
the ini file, lines such as `brokers = 2` or `settings.autoCreateTopicEnable = false`, apply to all tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from rmqkit.client import BlockingClient, Client
    from rmqkit.testing.rocketmq import RocketMQ, SetupKeywords, ThreadedRocketMQ

_MARKER = (
    "rocketmq(brokers=1, store=None, transport=None, settings={}, plugins=()): the servers of the fixture"
    " rocketmq; settings have the keys of broker.conf"
)
_SETTINGS = "settings."
_KEYWORDS = "brokers, store, transport, settings and plugins"
#: Fixtures of pytest-trio that have an effect in trio's loop only.
_JUMPING = frozenset({"autojump_clock", "mock_clock"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("rocketmq", "the servers of the fixture rocketmq, as KEY = VALUE", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Any:
    """A name server and one or several brokers, for this test alone. In tests of pytest-trio it runs in the
    test's loop (`rmqkit.testing.rocketmq.RocketMQ`), in other tests in a thread (`ThreadedRocketMQ`)."""
    in_loop = request.node.get_closest_marker("trio") is not None
    return request.getfixturevalue("_rocketmq_in_loop" if in_loop else "_rocketmq_in_thread")


@pytest.fixture
def rocketmq_client(request: pytest.FixtureRequest) -> Any:
    """An open client of `rocketmq`: a `Client` in asynchronous tests of pytest-trio and anyio, a
    `BlockingClient` in tests that are plain functions."""
    if request.node.get_closest_marker("trio") is not None:
        return request.getfixturevalue("_rocketmq_trio_client")
    if request.node.get_closest_marker("anyio") is not None:
        return request.getfixturevalue("_rocketmq_anyio_client")
    return request.getfixturevalue("_rocketmq_blocking_client")


@pytest.fixture
async def _rocketmq_in_loop(request: pytest.FixtureRequest) -> AsyncIterator[RocketMQ]:
    from rmqkit.testing.rocketmq import rocketmq_in_loop

    async with rocketmq_in_loop(**_wanted(request)) as servers:
        yield servers


@pytest.fixture(scope="session")
def _rocketmq_portal() -> Iterator[BlockingPortal]:
    """One thread for the servers of all tests, which saves most of their start."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal("trio", name="rmqkit test servers") as portal:
        yield portal


@pytest.fixture
def _rocketmq_in_thread(
    request: pytest.FixtureRequest, _rocketmq_portal: BlockingPortal
) -> Iterator[ThreadedRocketMQ]:
    from rmqkit.testing.rocketmq import rocketmq_in_thread

    jumping = _JUMPING & set(request.fixturenames)
    if jumping:
        pytest.fail(
            f"{', '.join(sorted(jumping))} moves trio's clock, and this test does not run in trio: make it a"
            " test of pytest-trio, or shorten the delays, with"
            ' settings={"messageDelayLevel": "1s 1s 1s 1s"} for example',
            pytrace=False,
        )
    with rocketmq_in_thread(portal=_rocketmq_portal, **_wanted(request)) as servers:
        yield servers


@pytest.fixture
async def _rocketmq_trio_client(_rocketmq_in_loop: RocketMQ) -> AsyncIterator[Client]:
    async with _rocketmq_in_loop.client() as client:
        yield client


@pytest.fixture
async def _rocketmq_anyio_client(_rocketmq_in_thread: ThreadedRocketMQ) -> AsyncIterator[Client]:
    async with _rocketmq_in_thread.client() as client:
        yield client


@pytest.fixture
def _rocketmq_blocking_client(_rocketmq_in_thread: ThreadedRocketMQ) -> Iterator[BlockingClient]:
    with _rocketmq_in_thread.blocking_client() as client:
        yield client


def _wanted(request: pytest.FixtureRequest) -> SetupKeywords:
    """The setup of a test: the ini file's, then those of its markers, the closest last. What means nothing
    fails the test by a sentence alone: a traceback would show fixtures of pytest and its plugins."""
    from rmqkit.errors import ConfigError, did_you_mean
    from rmqkit.testing.rocketmq import Setup, SetupKeywords

    lines: list[str] = request.config.getini("rocketmq")
    try:
        wanted = setup_of_lines(lines)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)
    for marker in reversed(list(request.node.iter_markers("rocketmq"))):
        if marker.args:
            pytest.fail(f"the marker rocketmq takes keywords only: {_KEYWORDS}", pytrace=False)
        for key in marker.kwargs.keys() - SetupKeywords.__annotations__:
            hint = did_you_mean(key, SetupKeywords.__annotations__, f"; there are {_KEYWORDS}")
            pytest.fail(f"the marker rocketmq has no keyword {key!r}{hint}", pytrace=False)
        settings = {**wanted.get("settings", {}), **marker.kwargs.get("settings", {})}
        wanted = {**wanted, **marker.kwargs, "settings": settings}
    try:
        Setup(**wanted)
    except ConfigError as error:
        pytest.fail(f"the marker rocketmq, or the ini file: {error}", pytrace=False)
    return wanted


def setup_of_lines(lines: list[str]) -> SetupKeywords:
    """The keywords that lines of the ini file mean. Raises UsageError for a line that means nothing."""
    wanted: dict[str, Any] = {"settings": {}}
    for line in lines:
        key, equals, value = (part.strip() for part in line.partition("="))
        if key.startswith(_SETTINGS) and equals:
            wanted["settings"][key.removeprefix(_SETTINGS)] = value
        elif key == "brokers" and value.isdecimal():
            wanted[key] = int(value)
        elif key in ("store", "transport") and value:
            wanted[key] = value
        else:
            raise pytest.UsageError(
                f"rocketmq in the ini file: {line!r} is none of brokers = NUMBER, store = NAME, transport ="
                " SCHEME, settings.KEY = VALUE"
            )
    return wanted  # type: ignore[return-value]
