"""Brokers without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.broker.desk import BrokerHarness, open_desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path) as found:
        yield found


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[BrokerHarness]]:
    """`async with opened(autoCreateTopicEnable=False) as desk`."""
    return partial(open_desk, tmp_path)
