"""Pages of the documents' site that are made of other files: README.md, CHANGELOG.md, and the public names of
the Python packages. mkdocs.yml names this module as a hook; nothing is written into docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from pkgutil import iter_modules

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
#: Packages whose names are those of `__all__`, and packages whose modules are the interfaces.
FACES = ("rmqkit.client", "rmqkit.config")
PACKAGES = ("rmqkit.plugin", "rmqkit.testing")
#: The name may be several, joined by commas, and parts of a call.
_ITEM = re.compile(r"(?P<name>[\w.*]+(?:, [\w.*]+)*) {2,}(?P<text>\S.*)")
_INTO_DOCS = re.compile(r"\]\(docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; MkDocs calls this when it has found the others."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def pages() -> dict[str, str]:
    """Name -> Markdown of each page."""
    made = {"first_steps.md": _moved(ROOT / "README.md"), "changelog.md": _moved(ROOT / "CHANGELOG.md")}
    for name in FACES:
        made[_page(name)] = "\n".join(_face(name))
    for name in PACKAGES:
        made[_page(name)] = "\n".join(_package(name))
    return made


def modules(name: str) -> list[str]:
    """The public modules of a package, and packages in it."""
    path = import_module(name).__path__
    return [f"{name}.{each.name}" for each in iter_modules(path) if not each.name.startswith("_")]


def _page(name: str) -> str:
    return f"api/{name.removeprefix('rmqkit.')}.md"


def _head(name: str) -> Iterator[str]:
    yield f"# {name}\n"
    yield f"{(import_module(name).__doc__ or '').strip()}\n"


def _face(name: str) -> Iterator[str]:
    """Classes and functions, and then what else is exported, with its value."""
    face = import_module(name)
    values = {each: getattr(face, each) for each in sorted(face.__all__)}
    described = [each for each, value in values.items() if isclass(value) or isfunction(value)]
    yield from _head(name)
    for each in described:
        yield f"::: {name}.{each}\n"
    others = [each for each in values if each not in described]
    if others:
        yield "## Values and types\n"
        yield "| name | |\n|---|---|"
        for each in others:
            shown = repr(values[each]).replace("|", "\\|")
            yield f"| `{each}` | `{shown}` |"


def _package(name: str) -> Iterator[str]:
    yield from _head(name)
    for each in modules(name):
        yield f"::: {each}\n"


class AlignedLists(griffe.Extension):
    """Shows the lists of docstrings, whose names and texts are columns, as lists."""

    def on_object(self, *, obj: griffe.Object, **others: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """A docstring in which lines such as `name   text`, at least two spaces between, are items of a list;
    lines that go on are indented."""
    made: list[str] = []
    is_list = False
    for line in text.splitlines():
        item = _ITEM.match(line)
        if item:
            if not is_list and made and made[-1]:
                made.append("")
            made.append(f"- `{item['name']}`: {item['text']}")
        elif is_list and line.startswith("  "):
            made.append(f"    {line.strip()}")
            continue
        else:
            made.append(line)
        is_list = item is not None
    return "\n".join(made)


def _moved(path: Path) -> str:
    """A document of the checkout's root with its links as they are from docs/."""
    return _INTO_DOCS.sub("](", path.read_text(encoding="utf-8"))
