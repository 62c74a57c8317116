"""One Spark for all tests of the connector: local, with two tasks at a time, little memory, and no user interface."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.kit_brokers import Brokers, brokers


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with filter pushdown as Spark has it unless told: off."""
    scratch = tmp_path_factory.mktemp("spark")
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmqkit-tests")
        .config("spark.ui.enabled", False)
        .config("spark.driver.memory", "768m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch / 'derby'}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A name server and a broker for tests that neither stop it nor take from it: each uses topics of its own."""
    with brokers(tmp_path_factory.mktemp("store")) as cluster:
        yield cluster


@pytest.fixture
def store_path(shared_cluster: Brokers) -> Path:
    """Where the shared broker keeps its files."""
    return shared_cluster.directory
