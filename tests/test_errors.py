"""The errors of rmqkit."""

from __future__ import annotations

from rmqkit.errors import first_error


def test_the_first_error_of_nested_groups_is_found() -> None:
    """It is the first of the first group; an error that is not a group is itself the first."""
    inner, other = OSError(5, "inner"), ValueError("other")
    groups = BaseExceptionGroup("", [ExceptionGroup("", [inner]), other])
    assert first_error(groups) is inner
    assert first_error(other) is other
