"""Brokers without sockets, and one whose pop service runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.broker.desk import BrokerHarness, open_desk
from tests.plugins.pop.pop_desk import PopDesk, open_pop_desk


@pytest.fixture
async def pops(tmp_path: Path) -> AsyncIterator[PopDesk]:
    async with open_pop_desk(tmp_path) as desk:
        yield desk


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[BrokerHarness]]:
    """Opens a broker with settings."""
    return partial(open_desk, tmp_path)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path) as desk:
        yield desk
