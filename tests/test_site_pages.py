"""The site of the documents: its parts, and the pages that are made of other files."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import site_pages

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def _leaves(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    else:
        for each in item.values() if isinstance(item, dict) else item:
            yield from _leaves(each)


def test_the_parts_of_the_site() -> None:
    """Four parts behind the first page; each document is in one of them, once."""
    home, *parts = SITE["nav"]
    assert home == {"Home": "index.md"}
    assert [name for part in parts for name in part] == ["Tutorials", "How-to", "Reference", "Explanation"]
    named = list(_leaves(SITE["nav"]))
    assert len(set(named)) == len(named)
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    documents = {name for name in written if not name.startswith("examples/")}
    assert set(named) == documents | set(site_pages.pages())


def test_warnings_are_errors_and_nothing_is_fetched() -> None:
    """Every kind of a broken link is a warning, which `make docs` takes for an error; fonts are the
    reader's."""
    assert set(SITE["validation"]["links"].values()) == {"warn"}
    assert SITE["validation"]["nav"]["omitted_files"] == "warn"
    assert "mkdocs build --strict" in (ROOT / "Makefile").read_text()
    assert SITE["theme"]["font"] is False


@pytest.mark.parametrize("name", site_pages.FACES)
def test_every_exported_name_is_on_its_page(name: str) -> None:
    """Classes and functions by their docstrings, others by their values."""
    page = site_pages.pages()[f"api/{name.removeprefix('rmqkit.')}.md"]
    face = import_module(name)
    for each in face.__all__:
        value = getattr(face, each)
        described = inspect.isclass(value) or inspect.isfunction(value)
        assert (f"::: {name}.{each}\n" if described else f"| `{each}` |") in page


@pytest.mark.parametrize("name", site_pages.PACKAGES)
def test_every_module_is_on_its_page(name: str) -> None:
    """Modules and packages in it, without private ones."""
    page = site_pages.pages()[f"api/{name.removeprefix('rmqkit.')}.md"]
    assert f"::: {name}.store\n" in page
    folder = Path(import_module(name).__path__[0])
    public = {path.stem for path in folder.glob("[!_]*.py")}
    assert public <= {each.rpartition(".")[2] for each in site_pages.modules(name)}


def test_documents_of_the_root_have_links_as_from_docs() -> None:
    """README.md and CHANGELOG.md name documents with their folder, pages of the site without."""
    pages = site_pages.pages()
    for name in ("first_steps.md", "changelog.md"):
        assert "](docs/" not in pages[name]
        assert ".md)" in pages[name]


def test_columns_of_a_docstring_are_a_list() -> None:
    """Names and texts in columns become items, lines that go on belong to them, other text stays as it is."""
    text = "What it is.\nname      the name\nage, day  one line\n          and more\n\nAn end,  with a space."
    made = "What it is.\n\n- `name`: the name\n- `age, day`: one line\n    and more\n\nAn end,  with a space."
    assert site_pages.with_lists(text) == made
    assert site_pages.with_lists(made) == made
