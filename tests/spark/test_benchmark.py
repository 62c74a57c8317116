"""What benchmarks.spark says about the code that Spark's workers run."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from benchmarks.spark import code_of_workers
from rmqkit import speedups


def test_the_workers_run_the_code_of_the_driver(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which code that is goes to the result; a difference is an error with a remedy."""
    found = code_of_workers(spark)
    assert found["Spark's workers"] == speedups.description()
    assert found["decoder"].endswith("filled_columns" if speedups.IN_USE else "gathered_columns")
    monkeypatch.setattr(speedups, "description", lambda: "pure Python (it was not built)")
    with pytest.raises(ValueError, match=r"Spark's workers run other code .*installed from this directory"):
        code_of_workers(spark)
