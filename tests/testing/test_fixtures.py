"""The plugin of pytest, in projects that do nothing but install rmqkit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rmqkit.testing.fixtures import setup_of_lines

DEADLINE_S = 300
PLAIN = """
import pytest


def test_plain(rocketmq, rocketmq_client):
    with rocketmq_client.producer("service") as producer:
        assert producer.send("Orders", b"coffee").is_ok
    assert rocketmq.brokers == ["broker-a"]


@pytest.mark.rocketmq(brokers=2, settings={"autoCreateTopicEnable": False})
class TestMarked:
    @pytest.mark.rocketmq(store="mmap")
    def test_markers_are_combined(self, rocketmq, rocketmq_client):
        assert len(rocketmq_client.admin.masters()) == 2
        rocketmq.restart("broker-b")
        with rocketmq_client.producer("service", retries=0) as producer:
            with pytest.raises(Exception, match="autoCreate"):
                producer.send("Orders", b"coffee")
"""
TRIO = """
import pytest
import trio


@pytest.mark.trio
async def test_trio(rocketmq, rocketmq_client):
    async with rocketmq_client.producer("service") as producer:
        rocketmq.fail_next(2)
        assert (await producer.send("Orders", b"coffee")).is_ok


@pytest.mark.trio
async def test_jump(autojump_clock, rocketmq, rocketmq_client):
    async with rocketmq_client.producer("service") as producer:
        rocketmq.delay(2)
        assert (await producer.send("Orders", b"coffee")).is_ok
    assert trio.current_time() >= 2
"""
ANYIO = """
import pytest
import sniffio


@pytest.mark.anyio
async def test_anyio(rocketmq, rocketmq_client):
    async with rocketmq_client.producer("service") as producer:
        rocketmq.fail_next(2)
        rocketmq.cut()
        assert (await producer.send("Orders", b"coffee")).is_ok
    print("under", sniffio.current_async_library())
"""
ASYNCIO = """
import asyncio
import pytest


@pytest.mark.asyncio
async def test_marked(rocketmq):
    async with rocketmq.client() as client, client.producer("service") as producer:
        rocketmq.fail_next(2)
        rocketmq.cut()
        assert (await producer.send("Orders", b"coffee")).is_ok
    print("under", asyncio.current_task().get_name()[:4])
"""
UNRELATED = """
import sys


def test_nothing():
    loaded = [name for name in sys.modules if name.startswith(("rmqkit", "trio", "msgspec"))]
    assert sorted(loaded) == ["rmqkit", "rmqkit.testing", "rmqkit.testing.fixtures"]
"""


def pytest_run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project, with the plugin loaded as by its entry point."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--strict-markers", *words],
        cwd=directory,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )


def passed(result: subprocess.CompletedProcess[str], count: int) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} passed" in result.stdout


def test_the_entry_point_is_installed() -> None:
    """A project that installs rmqkit has the fixtures."""
    (point,) = entry_points(group="pytest11", name="rmqkit")
    assert point.value == "rmqkit.testing.fixtures"


PLUGIN = ("-p", "rmqkit.testing.fixtures")


def test_plain_functions(tmp_path: Path) -> None:
    """Without an event loop; markers of the class and of the test are combined."""
    (tmp_path / "test_plain.py").write_text(PLAIN)
    passed(pytest_run(tmp_path, *PLUGIN), 2)


def test_pytest_trio(tmp_path: Path) -> None:
    """In the loop of the test, with a clock that jumps or without."""
    (tmp_path / "test_trio.py").write_text(TRIO)
    passed(pytest_run(tmp_path, *PLUGIN, "-p", "pytest_trio.plugin"), 2)


def test_anyio_under_both_loops(tmp_path: Path) -> None:
    """The plugin of anyio runs the test under asyncio and under trio; the servers are in a thread."""
    (tmp_path / "test_anyio.py").write_text(ANYIO)
    result = pytest_run(tmp_path, *PLUGIN, "-p", "anyio.pytest_plugin")
    passed(result, 2)
    assert "under asyncio" in result.stdout
    assert "under trio" in result.stdout


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    """In both of its modes, with a client opened by the test; in the mode `auto` without a marker, too."""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nasyncio_mode = {mode}\n")
    marked = ASYNCIO if mode == "strict" else ASYNCIO.replace("@pytest.mark.asyncio", "")
    (tmp_path / "test_asyncio.py").write_text(marked)
    result = pytest_run(tmp_path, *PLUGIN, "-p", "pytest_asyncio.plugin")
    passed(result, 1)
    assert "under Task" in result.stdout


def test_unrelated_runs_import_nothing(tmp_path: Path) -> None:
    """A run that uses no fixture of rmqkit pays for three small modules."""
    (tmp_path / "test_unrelated.py").write_text(UNRELATED)
    passed(pytest_run(tmp_path, *PLUGIN), 1)


def test_the_ini_file_sets_up_all_tests(tmp_path: Path) -> None:
    """Its lines are the defaults, and markers prevail."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nrocketmq =\n    brokers = 2\n    store = mmap\n    settings.defaultTopicQueueNums = 3\n"
    )
    (tmp_path / "test_ini.py").write_text(
        "import pytest\n"
        "def test_ini(rocketmq):\n"
        "    assert rocketmq.brokers == ['broker-a', 'broker-b']\n"
        "    rocketmq.restart('broker-a')\n"
        "@pytest.mark.rocketmq(brokers=1)\n"
        "def test_marker(rocketmq):\n"
        "    assert rocketmq.brokers == ['broker-a']\n"
    )
    passed(pytest_run(tmp_path, *PLUGIN), 2)


@pytest.mark.parametrize("line", ["broker = 2", "brokers = two", "settings.x", "transport ="])
def test_a_line_that_means_nothing_is_refused(line: str) -> None:
    """The error names the line and the forms."""
    with pytest.raises(pytest.UsageError, match=rf"'{line}' is none of brokers = NUMBER"):
        setup_of_lines([line])


def test_a_marker_without_keywords_is_refused(tmp_path: Path) -> None:
    """`rocketmq(2)` says what to write."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.rocketmq(2)\ndef test_it(rocketmq): pass\n"
    )
    result = pytest_run(tmp_path, *PLUGIN)
    assert result.returncode == 1
    assert "takes keywords only: brokers, store, transport" in result.stdout


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("broker=2", "the marker rocketmq has no keyword 'broker'; did you mean 'brokers'?"),
        ("x=1", "the marker rocketmq has no keyword 'x'; there are brokers, store, transport"),
        ("brokers=0", "brokers = 0: must be a number from 1 to 26"),
        (
            "settings={'flushDiskTyp': 'x'}",
            "unknown setting 'flushDiskTyp' (command line) is kept but has no effect here; did you mean"
            " 'flushDiskType'?",
        ),
    ],
)
def test_a_marker_that_means_nothing_is_refused(tmp_path: Path, marker: str, words: str) -> None:
    """The test fails with a sentence, not with a traceback of the servers."""
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.rocketmq({marker})\ndef test_it(rocketmq): pass\n"
    )
    result = pytest_run(tmp_path, *PLUGIN)
    assert result.returncode == 1
    assert words in result.stdout
    assert "fixtures.py" not in result.stdout
    assert "rocketmq.py" not in result.stdout


@pytest.mark.parametrize("name", ["autojump_clock", "mock_clock"])
def test_a_clock_that_cannot_jump_is_refused(tmp_path: Path, name: str) -> None:
    """Under asyncio the fixture would do nothing; the error says how delays are shortened there."""
    (tmp_path / "test_it.py").write_text(
        f"def test_it({name}, rocketmq): pass\ndef test_client({name}, rocketmq_client): pass\n"
    )
    result = pytest_run(tmp_path, *PLUGIN, "-p", "pytest_trio.plugin")
    assert result.returncode == 1
    assert "2 errors" in result.stdout
    assert f"{name} moves trio's clock, and this test does not run in trio" in result.stdout
    assert "messageDelayLevel" in result.stdout
    assert "fixtures.py" not in result.stdout


def test_the_tutorial(tmp_path: Path) -> None:
    """The blocks of docs/testing.md are the files of a project whose tests pass."""
    text = (Path(__file__).parent.parent.parent / "docs" / "testing.md").read_text()
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(files) == text.count("```python") == 5
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    plugins = ("-p", "pytest_trio.plugin", "-p", "anyio.pytest_plugin")
    passed(pytest_run(tmp_path, *PLUGIN, *plugins), 5)
