"""The public names of the kernel: what the faces export exists, and plugins use no private names."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import rmqkit
from rmqkit import plugin, speedups, toolkit

ROOT = Path(__file__).parent.parent
FACES = ["rmqkit", "rmqkit.client", "rmqkit.config", "rmqkit.protocol.headers", "rmqkit.testing.store"]
INTERFACES = [f"rmqkit.plugin.{each.name}" for each in pkgutil.iter_modules(plugin.__path__)]
TOOLS = [f"rmqkit.toolkit.{each.name}" for each in pkgutil.iter_modules(toolkit.__path__)]
PLUGINS = [
    path for kind in ("stores", "transports", "plugins", "hooks") for path in (ROOT / kind).rglob("*.py")
]


@pytest.mark.parametrize("name", FACES)
def test_a_face_exports_what_it_lists(name: str) -> None:
    """Every name of `__all__` exists and is listed once."""
    face = import_module(name)
    assert face.__all__
    assert sorted(set(face.__all__)) == sorted(face.__all__)
    assert [each for each in face.__all__ if not hasattr(face, each)] == []


@pytest.mark.parametrize(("package", "modules"), [(plugin, INTERFACES), (toolkit, TOOLS)])
def test_a_package_for_plugins_names_its_modules(package: ModuleType, modules: list[str]) -> None:
    """The package's docstring has a line for each module, and none for a module that is gone."""
    lines = [line.split() for line in (package.__doc__ or "").splitlines() if line.startswith("    ")]
    assert {f"{package.__name__}.{words[0]}" for words in lines} == set(modules)


@pytest.mark.parametrize("name", [*INTERFACES, *TOOLS])
def test_the_names_of_an_interface_are_documented(name: str) -> None:
    """Each public class and function of an interface module has a docstring."""
    module = import_module(name)
    assert module.__doc__
    own = [
        each for each in vars(module).values() if _is_own(each, module) and not each.__name__.startswith("_")
    ]
    assert [each.__name__ for each in own if not inspect.getdoc(each)] == []


def _is_own(thing: object, module: ModuleType) -> bool:
    return (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__ == module.__name__


def test_plugins_import_no_private_name_of_the_kernel() -> None:
    """A name that begins with an underscore may change at any time. The compiled part is built with the
    plugins of the same distribution, and a plugin imports the twins of its own functions from there."""
    assert len(PLUGINS) > 100
    found = [
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for path in PLUGINS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == rmqkit.__name__
        for alias in node.names
        if alias.name.startswith("_") or "._" in (node.module or "").removeprefix(f"{speedups.__name__}.")
    ]
    assert found == []
