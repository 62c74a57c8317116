"""The table of filters: registration, life, file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import load
from rmqkit.model.subscription import SubscriptionData
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import as_keys
from rmqkit_filter.index import table as filters
from rmqkit_filter.index.table import FilterTable

DAY_MS = 24 * 3_600_000


def compiles(subscription: SubscriptionData, group: str) -> None:
    if "bad" in subscription.sub_string:
        raise ValueError("does not parse")


def table(directory: Path, clock: FakeClock, **settings: Any) -> FilterTable:
    return FilterTable(load(environ={}, flags=as_keys(settings)), clock, directory, compiles)


def sql(expression: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version)


@pytest.mark.row("S059")
def test_a_newer_version_replaces_and_an_older_one_is_ignored(tmp_path: Path) -> None:
    """An equal text only refreshes the version; a text that does not parse removes the filter."""
    clock = FakeClock()
    known = table(tmp_path, clock)
    known.subscribe("g", [sql("a > 1", 5), SubscriptionData(topic="U", sub_string="tag")])
    first = known.get("T", "g")
    assert first is not None
    assert known.get("U", "g") is None
    known.subscribe("g", [sql("a > 2", 4)])
    known.subscribe("g", [sql("a > 1", 6)])
    assert known.get("T", "g") is first
    assert first.client_version == 6
    known.subscribe("g", [sql("a > 2", 7)])
    second = known.get("T", "g")
    assert second is not None
    assert second.expression == "a > 2"
    known.subscribe("g", [sql("bad", 8)])
    assert known.get("T", "g") is None
    assert len(known) == 0


async def test_a_deleted_group_takes_its_filters_with_it(tmp_path: Path) -> None:
    """Of all topics, online or not, and out of the file; those of other groups stay."""
    known = table(tmp_path, FakeClock())
    known.subscribe("gone", [sql("a > 1"), sql("a > 1", topic="U")])
    known.subscribe("offline", [sql("a > 1")])
    known.subscribe("kept", [sql("a > 1")])
    known.leave("offline")
    await known.persist()
    for group in ("gone", "offline", "unknown"):
        known.forget_group(group)
    assert (len(known), set(known.of_topic("T")), set(known.of_topic("U"))) == (1, {"kept"}, set())
    await known.persist()
    stored = json.loads((tmp_path / "consumerFilter.json").read_text())["filterDataByTopic"]
    assert {topic: set(each["groupFilterData"]) for topic, each in stored.items()} == {"T": {"kept"}}
    known.subscribe("gone", [sql("a > 1")])
    assert known.get("T", "gone") is not None


async def test_filters_of_groups_that_are_gone_are_kept_for_a_day(tmp_path: Path) -> None:
    clock = FakeClock()
    known = table(tmp_path, clock)
    known.subscribe("left", [sql("a > 1")])
    known.subscribe("changed", [sql("a > 1"), sql("a > 1", topic="U")])
    known.leave("left")
    known.subscribe("changed", [sql("a > 1")])
    states = {place: known.get(*place) for place in (("T", "left"), ("T", "changed"), ("U", "changed"))}
    assert {place: data and data.is_dead for place, data in states.items()} == {
        ("T", "left"): True,
        ("T", "changed"): False,
        ("U", "changed"): True,
    }
    known.subscribe("left", [sql("a > 1")])
    assert not states["T", "left"].is_dead  # type: ignore[union-attr]
    known.leave("left")
    clock.advance(DAY_MS)
    await known.persist()
    assert (known.get("T", "left"), known.get("U", "changed"), len(known)) == (None, None, 1)


@pytest.mark.row("S073", "S078")
async def test_the_file_has_the_form_of_apache(tmp_path: Path) -> None:
    """Names of Java's fields, and bits that Apache's BloomFilter gives; after a start all groups are
    offline."""
    clock = FakeClock()
    known = table(tmp_path, clock)
    known.subscribe("g", [sql("a > 1", 3)])
    await known.persist()
    text = json.loads((tmp_path / "consumerFilter.json").read_text())
    bits = text["filterDataByTopic"]["T"]["groupFilterData"]["g"].pop("bloomFilterData")
    assert (bits["bitNum"], len(bits["bitPos"])) == (112, 3)
    assert text == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "g": {
                        "consumerGroup": "g",
                        "topic": "T",
                        "expression": "a > 1",
                        "expressionType": "SQL92",
                        "bornTime": clock.now_ms(),
                        "deadTime": 0,
                        "clientVersion": 3,
                    }
                },
                "topic": "T",
            }
        }
    }
    clock.advance(60_000)
    again = table(tmp_path, clock)
    again.load()
    data = again.get("T", "g")
    assert data is not None
    assert data.dead_time == clock.now_ms() - 30_000
    again.subscribe("g", [sql("a > 1", 3)])
    assert not data.is_dead


@pytest.mark.row("S073")
async def test_a_file_with_other_bits_is_ignored(tmp_path: Path) -> None:
    known = table(tmp_path, FakeClock())
    known.subscribe("g", [sql("a > 1")])
    await known.persist()
    again = table(tmp_path, FakeClock(), expect_consumer_num_use_filter=64)
    again.load()
    assert len(again) == 0


async def test_a_file_with_impossible_bits_is_ignored(tmp_path: Path) -> None:
    known = table(tmp_path, FakeClock())
    known.subscribe("g", [sql("a > 1")])
    await known.persist()
    path = tmp_path / "consumerFilter.json"
    text = json.loads(path.read_text())
    text["filterDataByTopic"]["T"]["groupFilterData"]["g"]["bloomFilterData"]["bitPos"][0] = 112
    path.write_text(json.dumps(text))
    again = table(tmp_path, FakeClock())
    again.load()
    assert len(again) == 0


async def test_changes_that_are_not_written_are_known_by_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a topic; of all topics if too many have some. A removed filter is a change as well."""
    known = table(tmp_path, FakeClock())
    known.subscribe("g", [sql("a > 1")])
    data = known.get("T", "g")
    assert data is not None
    assert (known.unsaved_mask("T"), known.unsaved_mask("U")) == (data.mask, 0)
    await known.persist()
    assert known.unsaved_mask("T") == 0
    known.subscribe("g", [sql("bad", version=2)])
    assert known.unsaved_mask("T") == data.mask
    monkeypatch.setattr(filters, "MAX_FILTER_DATA", 1)
    known.subscribe("h", [sql("a > 1", topic="U")])
    other = known.get("U", "h")
    assert other is not None
    assert known.unsaved_mask("V") == other.mask
    await known.persist()
    assert known.unsaved_mask("T") == known.unsaved_mask("V") == 0


def test_the_table_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter of the group that has been offline longest goes first."""
    monkeypatch.setattr(filters, "MAX_FILTER_DATA", 2)
    clock = FakeClock()
    known = table(tmp_path, clock)
    for name in ("first", "second", "third"):
        clock.advance(1)
        known.subscribe(name, [sql("a > 1")])
        known.leave(name)
    assert [known.get("T", name) is not None for name in ("first", "second", "third")] == [False, True, True]
