"""Writes docs/conformance.md: the project's list of behaviours with the tests that prove them, and those that
no test proves yet.

Run `python -m tests.conformance` after a mark or a row has changed. A test proves a row when it, or its class
or module, carries `@pytest.mark.row("S041", ...)`. vectors/rows.tsv has the rows: id, behaviour and, where
the test follows today's Java rather than the text, what Java does.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
_HEAD = """# Conformance

The project's list of {total} behaviours of RocketMQ, each with the tests that prove it. \
{state}
A note in italics says where today's Java differs from the text; the tests follow Java.

`make test` runs all tests but those under `interop`, which `make interop` runs: Apache's Java clients (4.9.8,
5.3.3 and 5.5.0) and the Go client against rmqkit, the Python client against Apache's broker, and store
directories that move between Apache's store and ours; and those under `faults`, `sim`, `packaging`, `spark`
and `benchmarks`, which `make test-faults`, `make test-packaging`, `make test-spark` and `make
test-benchmarks` run. This page is written by `tests/conformance.py`; a test fails when it is out of date.

| row | behaviour | proved by |
|---|---|---|
"""


def rows() -> dict[str, str]:
    """Row -> what it says, with its note."""
    lines = (ROOT / "tests" / "vectors" / "rows.tsv").read_text(encoding="utf-8").splitlines()
    fields = (line.split("\t") for line in lines)
    return {row: f"{text} *{note[0]}*" if note else text for row, text, *note in fields}


@cache
def marked() -> dict[str, list[str]]:
    """Row -> the tests that name it, as `file::test`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for base, paths in (
        (ROOT / "tests", (ROOT / "tests").rglob("test_*.py")),
        (ROOT, (ROOT / "rmqkit" / "testing").rglob("*.py")),
    ):
        for path in sorted(paths):
            source = path.read_text(encoding="utf-8")
            if "mark.row(" in source:
                for row, test in _marks(ast.parse(source)):
                    found[row].append(f"{path.relative_to(base)}{test}")
    return dict(found)


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            yield from ((row, "") for row in _ids(node.value))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from (
                (row, f"::{node.name}") for decorator in node.decorator_list for row in _ids(decorator)
            )
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        yield from (
                            (row, f"::{inner.name}")
                            for decorator in inner.decorator_list
                            for row in _ids(decorator)
                        )


def _ids(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "row":
            yield from (
                argument.value
                for argument in call.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def document() -> str:
    """The page as it should be. Raises KeyError for a mark of a row that does not exist."""
    texts, proofs = rows(), marked()
    unknown = sorted(set(proofs) - set(texts))
    if unknown:
        raise KeyError(f"tests name rows that do not exist: {', '.join(unknown)}")
    lines = [_HEAD.format(total=len(texts), state=_state(len(texts) - len(proofs)))]
    for row, text in sorted(texts.items()):
        tests = ", ".join(f"`{test}`" for test in dict.fromkeys(proofs.get(row, ())))
        lines.append(f"| {row} | {text} | {tests or '**open**'} |\n")
    return "".join(lines)


def _state(open_rows: int) -> str:
    if open_rows:
        return f"{open_rows} are **open**: not built, or without a test that would fail if they broke."
    return "None is open."


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
