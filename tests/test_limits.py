"""Limits: where they come from RocketMQ they have its values, and together they fit each other."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from rmqkit import limits
from rmqkit.config import Config
from rmqkit.model import names
from rmqkit.protocol import batch, record


def test_values_of_rocketmq() -> None:
    """Limits that other people's clients know are theirs, to the byte."""
    assert limits.MAX_FRAME_BYTES == 16_777_216
    assert limits.MAX_PROPERTIES_BYTES == 32_767
    assert (limits.MAX_TOPIC_LENGTH, limits.MAX_DERIVED_TOPIC_LENGTH, limits.MAX_GROUP_LENGTH) == (
        127,
        255,
        120,
    )
    assert limits.IDLE_TIMEOUT_MS == 120_000
    assert limits.MAX_PENDING_CALLS == 65_535
    assert limits.MAX_QUERY_RESULTS == 64


ROOT = Path(limits.__file__).parent.parent
PLUGINS = [path for area in ("stores", "transports", "plugins", "hooks") for path in (ROOT / area).iterdir()]
MODULES = [limits] + [
    import_module(f"{path.name}.limits") for path in sorted(PLUGINS) if (path / "limits.py").exists()
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_are_positive_and_explained(module: ModuleType) -> None:
    """Every limit is a positive number below a comment that gives its reason."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    names = [name for name in vars(module) if name.isupper()]
    assert names
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        assert isinstance(node.targets[0], ast.Name)
        above = node.lineno - 2
        while lines[above][:1].isupper():
            above -= 1
        assert lines[above].startswith("#:"), node.targets[0].id
    assert all(getattr(module, name) > 0 for name in names)


def test_limits_of_one_plugin_are_its_own() -> None:
    """A limit that only one plugin reads is in a module of the plugin, and goes with it."""

    def read_in(folder: Path) -> set[str]:
        sources = [path for path in folder.rglob("*.py*") if path.suffix in {".py", ".pyx"}]
        texts = [path.read_text("utf-8") for path in sources if path != Path(limits.__file__)]
        return {word for text in texts for word in re.findall(r"\b[A-Z_]{4,}\b", text)}

    own = {name for name in vars(limits) if name.isupper()} - read_in(ROOT / "rmqkit")
    read = {path.name: read_in(path) for path in PLUGINS}
    readers = {name: [plugin for plugin, words in read.items() if name in words] for name in own}
    assert {name: plugins for name, plugins in readers.items() if len(plugins) < 2} == {}


def test_limits_of_bytes_and_names_are_held() -> None:
    """A limit of the protocol or of names that no code reads limits nothing."""
    root = Path(limits.__file__).parent.parent
    places = [root / name for name in ("rmqkit", "stores", "transports", "plugins")]
    sources = [
        path.read_text(encoding="utf-8")
        for place in places
        for path in place.rglob("*.py")
        if path.name != "limits.py"
    ]
    protocol = {
        "MAX_FRAME_BYTES",
        "MAX_HEADER_BYTES",
        "MAX_JSON_DEPTH",
        "MAX_BATCH_MESSAGES",
        "MAX_PROPERTIES_BYTES",
    }
    model = {"MAX_TOPIC_LENGTH", "MAX_DERIVED_TOPIC_LENGTH", "MAX_GROUP_LENGTH"}
    assert {name for name in protocol | model if not any(name in source for source in sources)} == set()


def test_limits_fit_each_other() -> None:
    """The largest message of the default settings travels in one frame; the derived topics of every group are
    legal; a header holds the longest properties even if JSON escapes all of them."""
    largest = record.record_size(
        Config().max_message_size, limits.MAX_DERIVED_TOPIC_LENGTH, limits.MAX_PROPERTIES_BYTES, 0x30
    )
    assert largest + limits.MAX_HEADER_BYTES < limits.MAX_FRAME_BYTES
    assert (
        max(len(names.RETRY_PREFIX), len(names.DLQ_PREFIX)) + limits.MAX_GROUP_LENGTH
        <= limits.MAX_DERIVED_TOPIC_LENGTH
    )
    assert 6 * limits.MAX_PROPERTIES_BYTES < limits.MAX_HEADER_BYTES < limits.MAX_FRAME_BYTES
    assert (
        len(batch.encode([batch.BatchItem(0, b"", b"")])) * limits.MAX_BATCH_MESSAGES
        < Config().max_message_size
    )
    assert limits.READ_CHUNK_BYTES <= limits.MAX_UNSENT_BYTES_PER_CONNECTION
