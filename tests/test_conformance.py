"""docs/conformance.md agrees with the marks."""

from __future__ import annotations

from tests import conformance


def test_the_page_is_up_to_date() -> None:
    """Write it anew with `python -m tests.conformance` when this fails."""
    assert conformance.DOCUMENT.read_text(encoding="utf-8") == conformance.document()


def test_every_row_is_listed() -> None:
    """Proven with all its tests, those of the contracts included, or open."""
    page = {line[2:6]: line for line in conformance.document().splitlines() if line.startswith("| S")}
    proofs = conformance.marked()
    assert page.keys() == conformance.rows().keys()
    assert {row for row, line in page.items() if line.endswith("| **open** |")} == page.keys() - proofs.keys()
    assert all(f"`{test}`" in page[row] for row, tests in proofs.items() for test in tests)


def test_a_mark_counts_wherever_it_is() -> None:
    """Marks on functions, classes and their methods, in a module's pytestmark and in its tables of cases."""
    import ast

    source = """
pytestmark = pytest.mark.row("S001")
@pytest.mark.row("S002", "S003")
async def test_a(): pass
class TestB:
    @pytest.mark.row("S004")
    def test_c(self): pass
CASES: Mapping[str, Any] = {"case": pytest.mark.row("S005")}
"""
    assert sorted(conformance._marks(ast.parse(source))) == [
        ("S001", ""),
        ("S002", "::test_a"),
        ("S003", "::test_a"),
        ("S004", "::test_c"),
        ("S005", ""),
    ]
