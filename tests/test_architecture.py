"""docs/architecture.md agrees with the import contracts; the pages for contributors name existing files."""

from __future__ import annotations

import re

import pytest

from tests import architecture

PAGES = ("design.md", "contributing.md")
_PATH = re.compile(
    r"`((?:rmqkit|stores|transports|plugins|hooks|spark_connector|tests|docs|benchmarks)/[\w./-]*)`"
)


def test_the_page_is_up_to_date() -> None:
    """If this fails, write the page again with `python -m tests.architecture`."""
    assert architecture.DOCUMENT.read_text(encoding="utf-8") == architecture.document()


def test_every_layer_and_every_plugin_is_drawn() -> None:
    """The picture has a node for each layer, names all plugins, and leads from each layer to the next one."""
    given = architecture.contracts()
    lines = list(architecture.picture(given))
    layers = next(each["layers"] for each in given if each["type"] == "layers")
    plugins = next(each["modules"] for each in given if each["type"] == "independence")
    assert sum(line.count("layer") == 1 and "[" in line for line in lines) == len(layers)
    assert all(any(name in line for line in lines) for name in plugins)
    assert sum("layer" in line and line.count("-->") == 1 for line in lines) == len(layers)


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    """Every path in backticks is a file or a folder of the repository."""
    paths = _PATH.findall((architecture.ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(paths) > 10
    assert [path for path in paths if not (architecture.ROOT / path).exists()] == []
