"""`python -m pyspark_rocketmq` prints a line with a remedy for each fault that would end a query."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pyspark_rocketmq.__main__ import main
from tests.spark.kit_brokers import Brokers


@pytest.fixture(autouse=True)
def _right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of the tests, and a recent Java."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    program(tmp_path / "bin" / "java", "echo 'openjdk version \"21.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


def program(path: Path, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_nothing_is_wrong(shared_cluster: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    """Interpreter, Java, name server and broker are all found."""
    assert main([shared_cluster.name_server]) == 0
    assert capsys.readouterr().out == "no fault found\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "workers start with PYSPARK_PYTHON"),
        ("echo 'it is broken' >&2; exit 3", "it is broken"),
        ("echo '[[3, 11], [\"rmqkit\"]]'", "which has no rmqkit"),
        ("echo '[[2, 7], []]'", "Python 2.7, and the driver with"),
    ],
)
def test_a_wrong_interpreter(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str | None,
    said: str,
) -> None:
    """One line is printed, which ends with the setting to change."""
    place = tmp_path / "python"
    if script is not None:
        program(place, script)
    monkeypatch.setenv("PYSPARK_PYTHON", str(place))
    assert main([]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert said in line
    assert f"set PYSPARK_PYTHON={sys.executable}" in line


def test_a_driver_python_without_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark starts data sources with PYSPARK_DRIVER_PYTHON, which notebooks set to a program that is no
    interpreter; the right one is not a fault."""
    monkeypatch.setenv(
        "PYSPARK_DRIVER_PYTHON", program(tmp_path / "jupyter", "echo 'no such command' >&2; exit 2")
    )
    assert main([]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"data sources start with PYSPARK_DRIVER_PYTHON = {tmp_path / 'jupyter'}")
    assert "no such command; unset it, or set PYSPARK_DRIVER_PYTHON=" in line
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    assert main([]) == 0


def test_a_wrong_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Java that is too old and a missing Java are reported."""
    program(tmp_path / "bin" / "java", "echo 'java version \"1.8.0_392\"' >&2")
    assert main([]) == 1
    assert "is not Java 17 or newer" in capsys.readouterr().out
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert main([]) == 1
    assert "there is no Java for Spark" in capsys.readouterr().out


def test_a_wrong_address(shared_cluster: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    """An address without a listener, and that of a broker, are reported."""
    port = shared_cluster.config.listen_port
    assert main(["127.0.0.1:1", f"127.0.0.1:{port}"]) == 1
    nothing, broker = capsys.readouterr().out.splitlines()
    assert nothing.startswith("nameServer = 127.0.0.1:1: no name server answers")
    assert broker.startswith(f"nameServer = 127.0.0.1:{port}: ")
    assert os.linesep not in broker
