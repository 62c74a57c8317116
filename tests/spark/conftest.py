"""One Spark session for all tests of the connector: local, with two parallel tasks, little memory, no user
interface, and no compilation of plans, which takes longer than the plans of these tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.kit_brokers import Brokers, brokers


@pytest.fixture(scope="session", autouse=True)
def quick_virtual_machines() -> Iterator[None]:
    """Java virtual machines of these tests, also of drivers that are processes, compile only
    quickly: they live for seconds, and optimising takes half of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(quick_virtual_machines: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with filter pushdown at Spark's default: off."""
    scratch = tmp_path_factory.mktemp("spark")
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmqkit-tests")
        .config("spark.ui.enabled", False)
        .config("spark.driver.memory", "768m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 1)
        .config("spark.sql.adaptive.enabled", False)
        .config("spark.sql.codegen.wholeStage", False)
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.python.daemon.module", "tests.spark.worker_daemon")
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
    """A name server and a broker for tests that neither stop nor change them; each test uses its own
    topics."""
    with brokers(tmp_path_factory.mktemp("store")) as cluster:
        yield cluster


@pytest.fixture
def store_path(shared_cluster: Brokers) -> Path:
    """The directory of the shared broker's files."""
    return shared_cluster.directory
