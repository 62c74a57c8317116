"""The map of the store's modules."""

from __future__ import annotations

import re
from pathlib import Path

import rmqkit_store_mmap


def test_the_map_lists_the_modules_of_the_package() -> None:
    """Every module and folder has a line in the docstring of the package, and every line has its module; the
    tools have one line together."""
    root = Path(rmqkit_store_mmap.__file__).parent
    modules = {
        path.stem
        for path in root.rglob("*.py")
        if path.stem != "__init__" and (root / "tools") not in path.parents
    }
    folders = {path.parent.name for path in root.rglob("__init__.py") if path.parent != root}
    listed = re.findall(r"^(?:    |        )(\w+)(?=  |$)", rmqkit_store_mmap.__doc__ or "", re.MULTILINE)
    assert sorted({*listed}) == sorted(modules | folders)
