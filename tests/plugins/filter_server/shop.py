"""What tests of filter servers share: a distribution with the filter `cheap`, for processes that load
installed filters, and waiting for other processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

PATIENCE_S = 60

_SOURCE = """
def cheap(message, below="10"):
    return int(message.properties["amount"]) < int(below)
"""


def install(folder: Path) -> Path:
    """Write the distribution into a folder that is to be on PYTHONPATH."""
    information = folder / "shop_filters-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "shop_filters.py").write_text(_SOURCE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-filters\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[rmqkit.filters]\ncheap = shop_filters:cheap\n")
    return folder


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it is about other processes and tasks
            await trio.sleep(0.01)
