"""The compiled part: which code runs, and that it is the code of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from rmqkit.speedups import stamp

ROOT = Path(__file__).parents[2]
STALE = "the compiled part is not that of the sources, `make speedups` builds it"


def described(folder: Path = ROOT, **environment: str) -> str:
    """What a new interpreter in that folder says, its log first."""
    program = "from rmqkit import speedups; print(speedups.description(), speedups.BUILT)"
    settings = {**os.environ, "RMQKIT_PURE": "", **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], env=settings, cwd=folder, capture_output=True, text=True, check=True
    )
    return (done.stderr + done.stdout).strip()


def test_the_compiled_part_was_built_from_the_sources_of_this_checkout() -> None:
    """A compiled part that is older than its sources would not be tested."""
    build = pytest.importorskip("rmqkit.speedups._build", reason="the compiled part was not built here")
    assert stamp.fits(ROOT, build.SOURCES), "run: make speedups"


def test_a_variable_switches_the_compiled_part_off() -> None:
    pytest.importorskip("rmqkit.speedups._build", reason="the compiled part was not built here")
    assert described(RMQKIT_PURE="1") == "pure Python (RMQKIT_PURE is set) True"
    assert described(RMQKIT_PURE="0").startswith("compiled (built by ")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two sources of the compiled part, and a module built beside one of them."""
    for folder in ("rmqkit/speedups", "stores/rmqkit_store_x/index"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("rmqkit/__init__.py", "stores/rmqkit_store_x/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "rmqkit/speedups/_one.pyx").write_text("cdef int one")
    (tmp_path / f"rmqkit/speedups/_one{EXTENSION_SUFFIXES[0]}").touch()
    (tmp_path / "stores/rmqkit_store_x/index/keys.h").write_text("static int key;")
    return tmp_path


def changed(checkout: Path) -> None:
    (checkout / "stores/rmqkit_store_x/index/keys.h").write_text("static int keys;")


def renamed(checkout: Path) -> None:
    header = checkout / "stores/rmqkit_store_x/index/keys.h"
    header.rename(header.with_name("names.h"))


def added(checkout: Path) -> None:
    (checkout / "stores/rmqkit_store_x/_two.pyx").write_text("cdef int two")


def removed(checkout: Path) -> None:
    (checkout / "stores/rmqkit_store_x/index/keys.h").unlink()


def unbuilt(checkout: Path) -> None:
    (checkout / f"rmqkit/speedups/_one{EXTENSION_SUFFIXES[0]}").unlink()


@pytest.mark.parametrize("change", [changed, renamed, added, removed, unbuilt])
def test_modules_do_not_fit_other_sources(checkout: Path, change: Callable[[Path], None]) -> None:
    """A source that was changed, renamed, added or removed since the build, or a module that is missing."""
    built_from = stamp.digest(checkout, stamp.sources(checkout))
    assert stamp.fits(checkout, built_from)
    change(checkout)
    assert not stamp.fits(checkout, built_from)


def test_a_checkout_may_contain_other_files(checkout: Path) -> None:
    """Neither Python nor what a build leaves behind changes what the modules were built from."""
    built_from = stamp.digest(checkout, stamp.sources(checkout))
    for name in ("rmqkit/other.py", "rmqkit/speedups/_one.c", "build.pyx", "stores/notes.h"):
        (checkout / name).touch()
    assert stamp.fits(checkout, built_from)


def test_stale_modules_do_not_run_and_the_log_says_what_builds_them(tmp_path: Path) -> None:
    """As after a pull that brought other sources: the program runs, in Python. With all sources as they were
    the modules run."""
    pytest.importorskip("rmqkit.speedups._build", reason="the compiled part was not built here")
    for source in stamp.sources(ROOT):
        kept = tmp_path / source.relative_to(ROOT)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for file in source.parent.glob(f"{source.stem}.*"):
            shutil.copy(file, kept.parent)
    for package in (package for folder in stamp.ROOTS for package in (tmp_path / folder).glob("*/")):
        (package / "__init__.py").touch()
    for name in ("__init__.py", "stamp.py"):
        shutil.copy(ROOT / "rmqkit" / "speedups" / name, tmp_path / "rmqkit" / "speedups")
    assert described(tmp_path).startswith("compiled (built by ")
    (tmp_path / "rmqkit/speedups/_frames.pyx").write_text("other")
    assert described(tmp_path).splitlines() == [f"pure Python runs: {STALE}", f"pure Python ({STALE}) False"]
