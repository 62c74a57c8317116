"""The build hook of the compiled part: every `*.pyx` of the packages becomes an extension module.

The compiled part is optional. Without Cython or a C compiler the distribution is built from Python alone and
says so. Two variables of the environment decide otherwise: `RMQKIT_PURE=1` builds no compiled part, and
`RMQKIT_COMPILED=1` ends the build with an error where the compiled part cannot be built.

An editable install gets the modules beside their sources, a wheel gets them from a folder of the build.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from shutil import copy2
from typing import Any

if __name__ != "__main__":
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
else:  # `python hatch_build.py` builds the modules in place, which needs no hatchling.
    BuildHookInterface = object

#: Which files the compiled part is made of. The package itself cannot be imported before it is installed.
STAMP = run_path(str(Path(__file__).resolve().parent / "rmqkit" / "speedups" / "stamp.py"))
ROOTS: tuple[str, ...] = STAMP["ROOTS"]
#: The module that carries their digest.
STAMPED = "rmqkit.speedups._build"
sources: Callable[[Path], list[Path]] = STAMP["sources"]


def build(root: Path, into: Path | None) -> list[Path]:
    """Compiles each `*.pyx` below `root`: beside its source, or into `into`. Gives the files made.

    Raises ImportError without Cython or setuptools, and what setuptools raises without a working compiler.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    os.chdir(root)
    shared = [path.relative_to(root).as_posix() for path in sources(root) if path.suffix != ".pyx"]
    modules = [_extension(root, path, shared) for path in sources(root) if path.suffix == ".pyx"]
    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "freethreading_compatible": False,
    }
    workshop = root / "build" / "compiled"
    # The stamp alone first: without a compiler nothing else is translated.
    modules.sort(key=lambda module: module.name != STAMPED)
    built = []
    for part in (modules[:1], modules[1:]):
        extensions = cythonize(
            part,
            compiler_directives=directives,
            build_dir=str(workshop),
            # A package of this checkout is found by its own name; the installed one may be missing or older.
            include_path=[".", "rmqkit/speedups"],
            quiet=True,
        )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_temp = str(workshop)
        command.build_lib = str(workshop / "lib" if into is None else into)
        command.parallel = os.cpu_count()
        command.finalize_options()
        # The stamp is made each time: its digest also changes when a source is removed.
        command.force = part[0].name == STAMPED
        command.run()
        built += [Path(command.get_ext_fullpath(extension.name)) for extension in extensions]
    if into is not None:
        return built
    return [
        _placed(path, _beside(root, module.name, path)) for path, module in zip(built, modules, strict=True)
    ]


def check_python(required: str) -> None:
    """Raises RuntimeError when this Python is none of the required ones: installers look at the distribution
    that they have built, so they would compile everything first."""
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(required).contains(platform.python_version(), prereleases=True):
        raise RuntimeError(f"rmqkit needs Python {required}, and this is {platform.python_version()}")


class CompiledPart(BuildHookInterface):  # type: ignore[misc]
    """Adds the compiled part to wheels, and puts it into the checkout for editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError under a Python that rmqkit does not run on, before anything is compiled."""
        check_python(self.metadata.core.requires_python)
        if self.target_name != "wheel" or _wanted("RMQKIT_PURE"):
            return
        root = Path(self.root)
        into = None if version == "editable" else root / "build" / "wheel"
        # pip shows it with -v alone, and installs in silence otherwise.
        self.app.display_info(
            "rmqkit is compiled, which takes half a minute of one core; RMQKIT_PURE=1 builds it without"
        )
        try:
            built = build(root, into)
        # A missing compiler shows itself in as many ways as there are compilers; the build says what it was.
        except (Exception, SystemExit) as error:
            if _wanted("RMQKIT_COMPILED"):
                raise
            self.app.display_warning(f"rmqkit is built without its compiled part, which is slower: {error}")
            if into is None:
                _remove_built(root)
            return
        if into is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"].update(
                {str(path): path.relative_to(into).as_posix() for path in built}
            )


def _extension(root: Path, path: Path, shared: list[str]) -> Any:
    from setuptools import Extension

    name = _module_name(root, path)
    digest = STAMP["digest"](root, sources(root)) if name == STAMPED else None
    return Extension(
        name,
        [path.relative_to(root).as_posix()],
        include_dirs=["rmqkit/speedups"],
        depends=shared,
        define_macros=[("RMQKIT_SOURCES", f'"{digest}"')] if digest else [],
        extra_compile_args=[] if sys.platform == "win32" else _flags(),
    )


def _flags() -> list[str]:
    """Flags of gcc and clang. A level of optimisation in the environment's CFLAGS stays as it is."""
    level = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
    return [*level, "-Wno-unused-function"]


def _wanted(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def _home(root: Path, path: Path) -> Path:
    """The folder from which `path` is imported."""
    return max(
        (root / folder for folder in ROOTS if path.is_relative_to(root / folder)),
        key=lambda home: len(home.parts),
    )


def _module_name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(_home(root, path)).with_suffix("").parts)


def _beside(root: Path, name: str, built: Path) -> Path:
    source = next(
        path for path in sources(root) if path.suffix == ".pyx" and _module_name(root, path) == name
    )
    return source.parent / built.name


def _remove_built(root: Path) -> None:
    """Removes the modules of an earlier build: older than the sources, they would run in their place."""
    for path in sources(root):
        if path.suffix == ".pyx":
            for module in path.parent.glob(path.stem + sysconfig.get_config_var("EXT_SUFFIX")):
                module.unlink()


def _placed(built: Path, place: Path) -> Path:
    # Renamed, not written over: a program that has the old module loaded keeps it.
    new = place.with_suffix(".new")
    copy2(built, new)
    new.replace(place)
    return place


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    for made in build(here, None):
        print(made.relative_to(here))  # noqa: T201
