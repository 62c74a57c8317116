"""docs/spark.md is correct: its tutorial runs as one program, its options are those of the tables, and the
tests it names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.write.columns import WRITE_COLUMNS
from tests.spark.document import sections
from tests.spark.kit_brokers import brokers

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "spark.md"


@pytest.fixture
def settings_as_before(spark: SparkSession) -> Iterator[None]:
    """Restores the settings that the tutorial changes."""
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))


@pytest.mark.usefixtures("settings_as_before")
def test_the_tutorial_is_a_program_that_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks run in order in an existing session, with only the addresses of the broker and its files
    replaced, and their assertions hold."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    program = "\n".join(blocks)
    with brokers(tmp_path) as cluster:
        told = {
            "127.0.0.1:9876": cluster.name_server,
            '"rmqkit-data"': repr(str(tmp_path)),
            "spark.stop()\n": "",
        }
        for text, ours in told.items():
            assert text in program
            program = program.replace(text, ours)
        exec(compile(program, str(DOCUMENT), "exec"), {"__name__": "tutorial"})
    assert "0 messages are left" in capsys.readouterr().out


@pytest.mark.parametrize("heading", list(sections()))
def test_options_are_those_of_the_table(heading: str) -> None:
    """The page has every option with its value, default and meaning, and no other; `python -m
    tests.spark.document` prints the expected text."""
    after = DOCUMENT.read_text().split(f"{heading}\n\n", 1)[1]
    written = after.split("\n\n", 1)[0].splitlines()
    assert written == sections()[heading]


def test_columns_of_a_write_are_described() -> None:
    """Each column is described with its types, in the order of the table."""
    after = DOCUMENT.read_text().split("## Columns of a write", 1)[1].split("\n## ", 1)[0]
    written = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", after, re.MULTILINE)
    assert written == [
        (name, " or ".join(types).replace("<", "&lt;").replace(">", "&gt;"))
        for name, types in WRITE_COLUMNS.items()
    ]


def test_guarantees_name_tests_that_are_there() -> None:
    """Every guarantee names at least one existing test."""
    after = DOCUMENT.read_text().split("## Guarantees", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in after.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`((?:\w+/)?test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for file, name in named:
            assert re.search(
                rf"^(async )?def {name}\(", (ROOT / "tests" / "spark" / file).read_text(), re.MULTILINE
            ), (file, name)


def test_the_picture_is_there() -> None:
    """Every picture on the page exists."""
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", DOCUMENT.read_text())
    assert names
    assert all((DOCUMENT.parent / name).read_bytes().startswith(b"\x89PNG") for name in names)
