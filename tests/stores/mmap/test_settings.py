"""The settings of the store mmap: values that cannot work, and contradictions to the kernel's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.broker.run import checks
from rmqkit.config import load
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, store_config
from rmqkit_store_mmap.settings import MmapSettings
from rmqkit_store_mmap.store import MmapStore


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mappedFileSizeConsumeQueue", "0"),
        ("mappedFileSizeConsumeQueueExt", "0"),
        ("maxHashSlotNum", "-5"),
        ("maxIndexNum", "1"),
        ("enableConsumeQueueExt", "perhaps"),
    ],
)
def test_a_value_that_cannot_work_is_refused(tmp_path: Path, key: str, value: str) -> None:
    """The check of a start names key, value and source; it asks whatever store is used."""
    file = tmp_path / "broker.conf"
    file.write_text(f"{key}={value}\nstore=memory\n")
    config = load(file, environ={})
    (fault,) = checks.examine(config, loader.load(config)).faults
    assert fault.key == key
    assert fault.text.startswith(f"setting {key} = {value!r} (file {file}): ")


@pytest.mark.parametrize("further", [{"store": "memory"}, {"store": "lmdb"}, {"dispatchers": "index"}])
def test_extensions_need_the_stores_own_queues(further: dict[str, str]) -> None:
    """The start is refused where the broker has other queues, whichever store has them."""
    config = load(environ={}, flags={"store": "mmap", "enableConsumeQueueExt": "true"} | further)
    with pytest.raises(ConfigError, match=r"enableConsumeQueueExt = true: .*; leave it out") as refused:
        loader.load(config)
    assert [fault.key for fault in refused.value.faults] == ["enableConsumeQueueExt"]


def test_the_settings_are_the_stores(tmp_path: Path) -> None:
    """They are listed with value and source like those of the kernel, and the store follows them."""
    config = store_config(tmp_path, enable_consume_queue_ext=True, max_index_num=7)
    rows = {key: (value, source) for key, value, source in config.described([MmapSettings])}
    assert rows["maxIndexNum"] == (7, "command line")
    assert rows["mappedFileSizeConsumeQueueExt"] == (50_331_648, "default")
    assert not config.has_setting("maxIndexNum")
    assert MmapStore(config, FakeClock(), FlushWhenWanted()).has_extensions
    assert not MmapStore(store_config(tmp_path), FakeClock(), FlushWhenWanted()).has_extensions
