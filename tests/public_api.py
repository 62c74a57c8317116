"""The public names with their signatures, recorded in public_api.txt. A change of them needs a line in
CHANGELOG.md: `python -m tests.public_api` records it, and refuses while the changelog is as it was at the
last record. docs/stability.md says what is public.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rmqkit import plugin, testing, toolkit

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "public_api.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
#: Only what is defined in it counts as a member of a class.
ROOT_PACKAGE = "rmqkit"
#: Packages that export what `__all__` lists, from wherever it is.
FACES = ("rmqkit", "rmqkit.client", "rmqkit.config")
#: Modules whose own names are public.
MODULES = (
    "rmqkit.client.codecs",
    "rmqkit.client.hooks",
    "rmqkit.client.outbox",
    "rmqkit.client.producing.send_options",
    "rmqkit.errors",
    *(
        f"{package.__name__}.{each.name}"
        for package in (plugin, toolkit, testing)
        for each in pkgutil.iter_modules(package.__path__)
    ),
)
#: Methods that callers name, though their names begin with an underscore.
_SPOKEN = ("__init__", "__call__")
#: A constructor that takes one of these is called by the client alone.
_INNER = frozenset({"BlockingClient", "Instance", "LoopThread"})
#: A longer value is left out.
_MAX_VALUE = 80
_STATE = "# CHANGELOG.md had the digest "

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines() -> list[str]:
    """The public names, one a line, sorted."""
    found: set[str] = set()
    for name in FACES:
        face = import_module(name)
        for exported in face.__all__:
            found |= {f"{name}.{line}" for line in _exported(exported, getattr(face, exported))}
    for name in MODULES:
        found |= {f"{name}.{line}" for line in of_module(import_module(name))}
    return sorted(found)


def of_module(module: ModuleType) -> Iterator[str]:
    """The names that a module itself defines."""
    for name, texts in _defined(_tree(module.__name__).body).items():
        thing = getattr(module, name, None)
        if inspect.isclass(thing) and thing.__module__ == module.__name__:
            yield from _of_class(name, thing)
        else:
            yield from (f"{name}: {text}" for text in texts)


def _exported(name: str, thing: object) -> Iterator[str]:
    if inspect.ismodule(thing):
        yield from (f"{name}.{line}" for line in of_module(thing))
    elif inspect.isclass(thing):
        yield from _of_class(name, thing)
    elif inspect.isfunction(thing):
        texts = _defined(_tree(thing.__module__).body)[thing.__name__]
        yield from (f"{name}: {text}" for text in texts)
    else:
        yield f"{name}: {type(thing).__name__}"


def _of_class(name: str, kind: type) -> Iterator[str]:
    """A class with its members, those of its bases in rmqkit included."""
    bases = [each.__name__ for each in kind.__bases__ if each is not object]
    yield f"{name}: class({', '.join(bases)})"
    members: dict[str, list[str]] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.partition(".")[0] == ROOT_PACKAGE:
            members |= _defined(_class_node(each).body)
    for member, texts in members.items():
        yield from (f"{name}.{member}: {text}" for text in texts)


def _class_node(kind: type) -> ast.ClassDef:
    body: Iterable[ast.stmt] = _tree(kind.__module__).body
    for part in kind.__qualname__.split("."):
        node = next(each for each in body if isinstance(each, ast.ClassDef) and each.name == part)
        body = node.body
    return node


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _defined(body: Iterable[ast.stmt]) -> dict[str, list[str]]:
    """Public name -> what is said of it; overloads stand for the function that implements them."""
    found: dict[str, list[str]] = {}
    overloaded: set[str] = set()
    for node in _statements(body):
        if isinstance(node, Function) and _is_inner(node):
            found.pop(node.name, None)
        elif isinstance(node, Function) and _is_public(node.name):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            if "overload" in decorators:
                overloaded.add(node.name)
                found.setdefault(node.name, []).append(_signature(node, []))
            elif node.name not in overloaded and not any(each.endswith(".setter") for each in decorators):
                found[node.name] = [_signature(node, decorators)]
        elif isinstance(node, ast.ClassDef) and _is_public(node.name):
            found[node.name] = ["class"]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if _is_public(node.target.id):
                found[node.target.id] = [f"{ast.unparse(node.annotation)}{_value(node.value)}"]
        elif isinstance(node, ast.Assign):
            parts = (each for target in node.targets for each in ast.walk(target))
            names = [each.id for each in parts if isinstance(each, ast.Name)]
            found |= {name: [f"value{_value(node.value)}"] for name in names if _is_public(name)}
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, those under a condition included: what type checkers see comes first."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.orelse)
            yield from _statements(node.body)
        else:
            yield node


def _is_public(name: str) -> bool:
    return name in _SPOKEN or not name.startswith(("_", "test_"))


def _is_inner(node: Function) -> bool:
    """Whether it is a constructor for the client alone."""
    if node.name != "__init__":
        return False
    taken = {ast.unparse(each.annotation) for each in node.args.args if each.annotation}
    return not _INNER.isdisjoint(taken)


def _signature(node: Function, decorators: list[str]) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    marks = "".join(f"@{each} " for each in decorators if each in ("property", "classmethod", "staticmethod"))
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{marks}{kind}({ast.unparse(node.args)}){returned}"


def _value(node: ast.expr | None) -> str:
    if node is None:
        return ""
    text = ast.unparse(node)
    # Pythons quote what is within f-strings differently.
    is_shown = len(text) <= _MAX_VALUE and not any(isinstance(each, ast.JoinedStr) for each in ast.walk(node))
    return f" = {text}" if is_shown else " = ..."


def recorded(record: Path = RECORD) -> list[str]:
    """The names as they are recorded."""
    return sorted(
        line for line in record.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    )


def differences(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """What is gone and what is new, in this order."""
    old, new = set(before), set(now)
    return [f"- {each}" for each in sorted(old - new)] + [f"+ {each}" for each in sorted(new - old)]


def write(
    record: Path = RECORD, changelog: Path = CHANGELOG, now: Callable[[], list[str]] = lines
) -> list[str]:
    """Record the names and return what has changed. Raises ValueError when something has, and the changelog
    says nothing new."""
    current = now()
    changes = differences(recorded(record) if record.exists() else [], current)
    digest = hashlib.sha256(changelog.read_bytes()).hexdigest()[:16]
    states = re.findall(rf"^{re.escape(_STATE)}(\w+)$", record.read_text() if record.exists() else "", re.M)
    if changes and digest in states:
        raise ValueError("\n".join(["write a line in CHANGELOG.md first, for:", *changes]))
    if changes:
        record.write_text("\n".join([f"{_STATE}{digest}", *current, ""]), encoding="utf-8")
    return changes


if __name__ == "__main__":
    try:
        for change in write():
            print(change)  # noqa: T201
    except ValueError as error:
        sys.exit(str(error))
