"""SQL92 beside Apache's own filter."""

from __future__ import annotations

from random import Random

from rmqkit_filter.index.bloom import BloomFilter
from tests.interop.filters import apache_verdicts
from tests.plugins.filter.sql92_cases import cases
from tests.plugins.filter.test_sql92 import verdict


def test_ten_thousand_expressions_match_as_in_apache() -> None:
    """Each with random properties; and the bits of each text in the bloom filter of the broker's settings."""
    asked = list(cases(Random(20_000), 10_000))
    bloom = BloomFilter(20, 32)
    different = [
        (case, expected)
        for case, (expected, bits) in zip(asked, apache_verdicts(asked), strict=True)
        if verdict(case) != expected or bloom.positions(case.expression) != bits
    ]
    assert different == []
