"""Writes docs/architecture.md: the layers of the kernel and the rules of imports, drawn from the import
contracts in pyproject.toml.

Run `python -m tests.architecture` after a contract has changed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "architecture.md"
_HEAD = """# Architecture

The import contracts in `pyproject.toml` as a picture; `lint-imports` checks them, imports for type checking
included. A layer imports only from the layers below it. `tests/architecture.py` writes this page; a test
fails when it is out of date. [design.md](design.md) explains the parts.

```mermaid
flowchart TB
{lines}
```

| contract | rule |
|---|---|
{rules}
"""


def contracts() -> list[dict[str, Any]]:
    """The import contracts of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def picture(given: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the diagram: a node for each layer, and one for the plugins above the plugin interface."""
    layers = next(each["layers"] for each in given if each["type"] == "layers")
    plugins = next(each["modules"] for each in given if each["type"] == "independence")
    for number, layer in enumerate(layers):
        yield f'    layer{number}["{"<br/>".join(_modules(layer))}"]'
    yield f'    plugins["{"<br/>".join(plugins)}"]'
    for number in range(1, len(layers)):
        yield f"    layer{number - 1} --> layer{number}"
    interface = next(number for number, layer in enumerate(layers) if "rmqkit.plugin" in _modules(layer))
    yield f"    plugins --> layer{interface}"


def rule(contract: dict[str, Any]) -> str:
    """One contract as a sentence."""
    if contract["type"] == "layers":
        return "from top to bottom: " + "; ".join(
            ", ".join(map(_code, _modules(each))) for each in contract["layers"]
        )
    if contract["type"] == "independence":
        return f"none of {len(contract['modules'])} packages imports another one"
    sources, forbidden = (_short(contract[f"{kind}_modules"]) for kind in ("source", "forbidden"))
    how = "directly" if contract.get("allow_indirect_imports") else "directly or indirectly"
    return f"{sources} must not import {forbidden}, {how}"


def document() -> str:
    """The page as it should be."""
    given = contracts()
    rules = "\n".join(f"| {each['name']} | {rule(each)} |" for each in given)
    return _HEAD.format(lines="\n".join(picture(given)), rules=rules)


def _modules(layer: str) -> list[str]:
    return re.split(r"\s*[:|]\s*", layer)


def _code(module: str) -> str:
    return f"`{module}`"


def _short(modules: list[str]) -> str:
    """The modules; more than six of one kind are only counted."""
    if len(modules) <= 6:
        return ", ".join(map(_code, modules))
    kernel = [each for each in modules if each.startswith("rmqkit.")]
    return ", ".join([*map(_code, kernel), f"{len(modules) - len(kernel)} plugin packages"])


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
