"""The Spark demo: its data, streams, result check and picture."""

from __future__ import annotations

import json
import struct
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmqkit.cli import main
from rmqkit.demos.spark.events import Day, Sum, send
from rmqkit.demos.spark.jobs import SUMS_TOPIC, Jobs, as_sums
from rmqkit.demos.spark.picture import draw
from rmqkit.demos.spark.verb import difference
from tests.spark.kit_brokers import brokers


def test_the_same_seed_makes_the_same_day() -> None:
    """Orders are sorted by time and summed while they are generated; the last one belongs to no window."""
    day = Day(1000, seed=3)
    events = [json.loads(body) for body in day.events()]
    assert [json.dumps(each) for each in events] == [
        json.dumps(json.loads(body)) for body in Day(1000, seed=3).events()
    ]
    *orders, closing = events
    times = [datetime.fromisoformat(each["time"]).timestamp() for each in orders]
    assert times == sorted(times)
    expected: dict[tuple[int, str], Sum] = {}
    for at, each in zip(times, orders, strict=True):
        key = int(at // 1800 * 1800), each["country"]
        before = expected.get(key, Sum(0, 0))
        expected[key] = Sum(before.orders + 1, before.cents + each["cents"])
    assert day.sums == expected
    assert closing["cents"] == 0


def test_both_streams_bring_the_sums_that_were_sent(spark: SparkSession, tmp_path: Path) -> None:
    """Every window is once in the topic and once in Parquet."""
    lines: list[str] = []
    with brokers(tmp_path / "store") as cluster:
        day = Day(2000, seed=4)
        assert send(cluster.name_server, day) == 2001
        zone = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        try:
            jobs = Jobs(spark, cluster.name_server, tmp_path, 1500, lines.append)
            jobs.to_topic()
            jobs.to_parquet()
            assert jobs.read_topic() == jobs.read_parquet() == day.sums
        finally:
            spark.conf.set("spark.sql.session.timeZone", str(zone))
        messages = spark.read.format("rocketmq").option("nameServer", cluster.name_server).load(SUMS_TOPIC)
        assert messages.count() == len(day.sums)
    assert any(line.startswith("  batch 0: ") for line in lines)


def test_the_verdict_is_drawn_from_the_sums() -> None:
    """A missing, additional, different or duplicate window is reported."""
    sent = {(0, "Kenya"): Sum(1, 5), (0, "India"): Sum(2, 9)}
    assert difference("topic", sent, dict(sent)) == ""
    for found in (
        {(0, "Kenya"): Sum(1, 5)},
        sent | {(9, "India"): Sum(1, 1)},
        sent | {(0, "India"): Sum(2, 8)},
    ):
        assert difference("topic", sent, found).startswith("1 windows of the topic differ from what was sent")
    row = {"start": 0, "country": "India", "orders": 1, "cents": 2}
    with pytest.raises(ValueError, match="occurs twice"):
        as_sums([row, row])


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    """The picture is a PNG of 1200 x 675 pixels."""
    day = Day(100, seed=5)
    assert len(list(day.events())) == 101
    draw(day.sums, tmp_path / "new" / "picture.png")
    content = (tmp_path / "new" / "picture.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (1200, 675)


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Spark or the drawing package, the verb names the package to install."""
    monkeypatch.setattr(
        "rmqkit.demos.spark.verb.find_spec", lambda name: None if name in ("pyspark", "matplotlib") else name
    )
    assert main(["demo-spark"]) == 2
    assert "pip install '.[demo,spark]'" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["demo-spark", "--orders", "0"]) == 2
