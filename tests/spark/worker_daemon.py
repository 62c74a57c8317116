"""The parent process of Spark's Python workers in these tests. It imports what every worker needs before it
forks them, which Spark's own daemon leaves to each worker."""

from __future__ import annotations

import numpy  # noqa: F401
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import pyspark_rocketmq.read.cluster
import pyspark_rocketmq.stream.reader
import pyspark_rocketmq.write.writer  # noqa: F401

if __name__ == "__main__":
    manager()
