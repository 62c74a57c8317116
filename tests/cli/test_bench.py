"""`rmqkit bench`: load, and the figures about it."""

from __future__ import annotations

from rmqkit.cli.bench import Latencies
from rmqkit.client import BlockingClient
from tests.cli.conftest import Verbs


def test_messages_are_sent_and_consumed(verbs: Verbs, client: BlockingClient) -> None:
    """Exactly the wanted number, of the wanted size, one by one or in batches; a consumer stops after its
    number."""
    client.admin.create_topic("Load", queues=2)
    words = ("Load", "--messages", "50", "--size", "100", "--concurrency", "4")
    result = verbs.json("bench", "produce", *words)
    assert (result["messages"], result["failed"]) == (50, 0)
    assert result["messagesPerSecond"] > 0
    assert 0 < result["latencyMs"]["p50"] <= result["latencyMs"]["p99"] <= result["latencyMs"]["max"]
    batched = verbs.json("bench", "produce", *words, "--batch", "8", "--rate", "100000")
    assert batched["messages"] == 50
    assert sum(at.max_offset for at in client.admin.topic_stats("Load").values()) == 100
    consumed = verbs.json("bench", "consume", "Load", "--messages", "100", "--concurrency", "4")
    assert (consumed["messages"], consumed["failed"]) == (100, 0)
    shown = verbs.text("bench", "produce", *words).splitlines()
    assert shown[0].startswith("50 messages in ")
    assert "p99.9" in shown[2]


def test_a_run_ends_after_its_time(verbs: Verbs, client: BlockingClient) -> None:
    """Without messages to consume the exit code is 1."""
    client.admin.create_topic("Load", queues=1)
    result = verbs.json("bench", "consume", "Load", "--seconds", "0.1", code=1)
    assert result["messages"] == 0
    assert "no route" in verbs.text("bench", "produce", "Nowhere", "--messages", "1", code=1)
    assert "at least 1" in verbs.text("bench", "produce", "Load", "--size", "0", code=2)


def test_percentiles() -> None:
    """Within 2 % of the exact ones, whatever the number of calls."""
    latencies = Latencies()
    assert latencies.percentile_ms(50) == 0
    for number in range(1, 10_001):
        latencies.add(number / 1e6)
    for percent in (50, 90, 99, 99.9):
        exact_ms = percent / 10
        assert exact_ms <= latencies.percentile_ms(percent) <= exact_ms * 1.02 + 0.001
    assert latencies.as_dict()["max"] == 10.0
