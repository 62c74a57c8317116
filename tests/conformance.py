"""Writes docs/conformance.md: every behaviour that a test proves, with the test. Run `python -m tests.conformance` after adding marks.

A test proves a row when it, or its class or module, carries `@pytest.mark.row("S041", ...)`; vectors/rows.tsv says what each row is.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
_HEAD = """# Conformance

What works, and the test that proves it. `make test` runs all but those under `tests/interop`, which `make interop` runs: Apache's Java
clients (4.9.8 and 5.3.x) and the Go client against rmqkit, and the Python client against Apache's broker. The numbers are those of the
project's list of {total} behaviours; {proved} of them have a test today. This page is written by `tests/conformance.py` and a test holds
it true.

| row | behaviour | proved by |
|---|---|---|
"""


def rows() -> dict[str, str]:
    """Row -> what it says."""
    lines = (ROOT / "tests" / "vectors" / "rows.tsv").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines)


def marked() -> dict[str, list[str]]:
    """Row -> the tests that name it, as `file::test`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for row, test in _marks(ast.parse(path.read_text(encoding="utf-8"))):
            found[row].append(f"{path.relative_to(ROOT / 'tests')}{test}")
    for contract in sorted((ROOT / "rmqkit" / "testing").glob("*.py")):
        for row, test in _marks(ast.parse(contract.read_text(encoding="utf-8"))):
            found[row].append(f"rmqkit/testing/{contract.name}{test}")
    return dict(found)


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            yield from ((row, "") for row in _ids(node.value))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from ((row, f"::{node.name}") for decorator in node.decorator_list for row in _ids(decorator))
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        yield from ((row, f"::{inner.name}") for decorator in inner.decorator_list for row in _ids(decorator))


def _ids(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "row":
            yield from (argument.value for argument in call.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str))


def document() -> str:
    """The page as it should be. Raises KeyError for a mark of a row that does not exist."""
    texts, proofs = rows(), marked()
    unknown = sorted(set(proofs) - set(texts))
    if unknown:
        raise KeyError(f"tests name rows that do not exist: {', '.join(unknown)}")
    lines = [_HEAD.format(total=len(texts), proved=len(proofs))]
    for row in sorted(proofs):
        tests = proofs[row]
        more = f" and {len(tests) - 2} more" if len(tests) > 2 else ""
        lines.append(f"| {row} | {texts[row]} | {', '.join(f'`{test}`' for test in tests[:2])}{more} |\n")
    return "".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
