"""The filters of groups as a broker uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.config import load
from rmqkit.model.subscription import SubscriptionData
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.store import ExtensionFilter
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.filter import check_filter_index
from rmqkit_filter.index.filters import GroupFilters


def made(directory: Path, **keys: object) -> GroupFilters:
    config = load(environ={}, flags={"storePathRootDir": str(directory)} | keys)
    return GroupFilters(config, FakeClock(), lambda subscription, group: CompiledFilter())


async def test_contract(tmp_path: Path) -> None:
    await check_filter_index(GroupFilters, tmp_path)


async def test_an_index_that_breaks_the_contract_is_found(tmp_path: Path) -> None:
    """A group's filter must outlive its members."""

    class Forgetful(GroupFilters):
        def leave(self, group: str) -> None:
            self.forget_group(group)

    with pytest.raises(AssertionError, match="is not kept"):
        await check_filter_index(Forgetful, tmp_path)


def test_settings(tmp_path: Path) -> None:
    """The settings ask for bit maps and for filters of retries, and say how often the table is written; the
    live ones change."""
    index = made(tmp_path)
    assert (index.bit_maps_setting, index.filters_retries, index.persist_interval_ms) == ("", False, 10_000)
    flags = {"enableCalcFilterBitMap": True, "filterDataCleanTimeSpan": 0}
    index.configure(load(environ={}, flags=flags))
    assert (index.bit_maps_setting, index.persist_interval_ms) == ("enableCalcFilterBitMap", 1_000)
    assert made(tmp_path, filterSupportRetry=True).filters_retries


def test_a_retry_topic_has_no_bit_maps(tmp_path: Path) -> None:
    """Its messages are filtered by the filter of another topic, if at all."""
    index = made(tmp_path, enableCalcFilterBitMap=True)
    assert isinstance(index.unit(SubscriptionData(topic="T", sub_string="a"), "g"), ExtensionFilter)
    assert index.unit(SubscriptionData(topic="%RETRY%g", sub_string="a"), "g") is None
    assert index.bit_maps("%RETRY%g") is None
