"""Which module imports which: of the Python sources, imports for type checking included, and of the compiled
part."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Folders whose subfolders are packages.
_GROUPS = ("plugins", "hooks", "stores", "transports", "spark_connector")
_CYTHON = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+))", re.MULTILINE)

Graph = Mapping[str, frozenset[str]]


def sources() -> dict[str, list[Path]]:
    """Module -> its files; a compiled module may have a `.pyx` and a `.pxd`."""
    packages = [ROOT / "rmqkit"]
    packages += [path for group in _GROUPS for path in (ROOT / group).iterdir() if path.is_dir()]
    found: dict[str, list[Path]] = {}
    for package in packages:
        for path in sorted(package.rglob("*")):
            if path.suffix in {".py", ".pyx", ".pxd"}:
                parts = path.relative_to(package.parent).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found.setdefault(name, []).append(path)
    return found


@cache
def graph() -> Graph:
    """Module -> the modules of this repository that it imports."""
    files = sources()
    return {
        module: frozenset(
            target
            for path in paths
            for name in imported(path.read_text(encoding="utf-8"), path.suffix)
            if (target := _module(name, files)) is not None and target != module
        )
        for module, paths in files.items()
    }


def imported(text: str, suffix: str) -> Iterator[str]:
    """The dotted names that a source imports: `a.b` of `import a.b`, `a.b` of `from a import b`."""
    if suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        return
    for source, names, plain in _CYTHON.findall(text):
        if plain:
            yield plain
        else:
            yield from (f"{source}.{name.strip('() ').split(' ')[0]}" for name in names.split(","))


def layers() -> list[list[frozenset[str]]]:
    """The layers of the kernel by the contract of pyproject.toml, from top to bottom. Packages of one set may
    import each other, those of different sets of a layer may not."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (found,) = [each["layers"] for each in contracts["contracts"] if each["type"] == "layers"]
    return [
        [frozenset(name.strip() for name in part.split(":")) for part in layer.split("|")] for layer in found
    ]


def against(layers: list[list[frozenset[str]]], of: Graph) -> list[str]:
    """The imports that go up, or aside to a package of another set, as text."""
    sets = {
        package: (number, part) for number, layer in enumerate(layers) for part in layer for package in part
    }

    def place(module: str) -> tuple[int, frozenset[str]] | None:
        return sets.get(".".join(module.split(".")[:2]))

    found = []
    for module, targets in of.items():
        own = place(module)
        for target in sorted(targets):
            other = place(target)
            if own is None or other is None or other[0] > own[0] or other[1] == own[1]:
                continue
            found.append(f"{module} imports {target}")
    return found


def circles(of: Graph) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in of[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for module in of:
        if module not in index:
            visit(module)
    return found


def drawn(group: list[str], of: Graph) -> str:
    """A circle as text: each module with those of the circle that it imports."""
    return "\n".join(f"{each} imports {', '.join(sorted(of[each] & set(group)))}" for each in group)


def _module(name: str, files: Mapping[str, object]) -> str | None:
    """The module of an imported name: itself, or the one that holds it."""
    if name in files:
        return name
    holder = name.rpartition(".")[0]
    return holder if holder in files else None
