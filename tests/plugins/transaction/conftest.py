"""Brokers with each form in which transactions are kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.plugins.transaction.kit import KINDS, Producer, producing

Opened = Callable[..., AbstractAsyncContextManager[Producer]]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens a broker with one of both forms, over the chosen store; keys of broker.conf may follow."""
    return partial(producing, tmp_path, keeping=request.param)


@pytest.fixture(params=["memory", "mmap", "lmdb"])
def over_each_store(request: pytest.FixtureRequest, opened: Opened) -> Opened:
    """The same over each store."""
    return partial(opened, store=request.param)


@pytest.fixture(params=["mmap", "lmdb"])
def over_each_disk(request: pytest.FixtureRequest, opened: Opened) -> Opened:
    """The same over each store that is there after a restart."""
    return partial(opened, store=request.param)
