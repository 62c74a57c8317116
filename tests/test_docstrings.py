"""A docstring says what its thing is or does before it says anything else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.imports import sources

#: Beginnings that leave open what the thing itself is or does.
_NOTHING_OF_ITS_OWN = re.compile(r"(?:Raises|See|As|The same)\b")
_CYTHON = re.compile(r'^ *(?:c?p?def|class)\b[^"#]*?:\n *"""(.*?)"""', re.MULTILINE | re.DOTALL)


def docstrings(text: str, suffix: str) -> Iterator[str]:
    """The docstrings of the functions and classes of a module."""
    if suffix != ".py":
        yield from _CYTHON.findall(text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield ast.get_docstring(node) or ""


def silent(text: str, suffix: str) -> list[str]:
    """The docstrings that say nothing of their own first."""
    return [found for found in docstrings(text, suffix) if _NOTHING_OF_ITS_OWN.match(found)]


def test_docstrings_say_first_what_a_thing_is_or_does() -> None:
    """None begins with the errors that are raised, or with a reference to another one."""
    found = {
        module: each
        for module, paths in sources().items()
        for path in paths
        if (each := silent(path.read_text(encoding="utf-8"), path.suffix))
    }
    assert not found, found


def test_every_form_of_a_docstring_is_read() -> None:
    """Functions, methods and classes of Python, and of Cython with C types and long lists of parameters."""
    python = 'class A:\n    """See B."""\n    async def f(self):\n        """Raises C."""\n'
    assert silent(python, ".py") == ["See B.", "Raises C."]
    cython = (
        'cdef class A:\n    """See B."""\n\n    def f(self, bytes data not None,\n          at=0):\n'
        '        """As `g`."""\n\ncdef int h(int a) noexcept nogil:\n    """The same."""\n'
        'cpdef i():\n    """Seen from outside."""\n'
    )
    assert silent(cython, ".pyx") == ["See B.", "As `g`.", "The same."]
    assert [*docstrings(cython, ".pyx")][-1] == "Seen from outside."
