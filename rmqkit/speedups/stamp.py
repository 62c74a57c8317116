"""Tells whether compiled modules in a checkout were built from the sources beside them.

`hatch_build.py` loads this file by its path before anything is installed, so it imports the standard library
alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

__all__ = ["ROOTS", "digest", "fits", "sources"]

#: Folders whose subfolders are packages, as in the editable install.
ROOTS = (".", "stores", "transports", "plugins", "hooks", "spark_connector")
_PACKAGES = ("rmqkit", "pyspark_rocketmq")
#: Endings of files that the compiled part is made of.
_SOURCES = (".pyx", ".pxd", ".h")


def sources(root: Path) -> list[Path]:
    """The files that the compiled part is made of, in a fixed order."""
    return sorted(
        Path(folder, name)
        for package in _packages(root)
        for folder, _, names in os.walk(package)
        for name in names
        if name.endswith(_SOURCES)
    )


def digest(root: Path, files: list[Path]) -> str:
    """A digest of the files' paths below `root` and of their contents. The compiled part carries the one that
    it was built from. Raises OSError."""
    from hashlib import sha256

    found = sha256()
    for path in files:
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def fits(root: Path, built_from: str) -> bool:
    """Whether the sources below `root` have this digest, and a module is built beside each `*.pyx`."""
    try:
        files = sources(root)
        return digest(root, files) == built_from and all(map(_is_built, files))
    except OSError:
        return False


def _packages(root: Path) -> Iterator[Path]:
    for folder in ROOTS:
        for package in (root / folder).glob("*/__init__.py"):
            if package.parent.name.startswith(_PACKAGES):
                yield package.parent


def _is_built(path: Path) -> bool:
    return path.suffix != ".pyx" or any(
        path.with_name(path.stem + suffix).exists() for suffix in EXTENSION_SUFFIXES
    )
