"""Lines for errors."""

from __future__ import annotations

import errno

from rmqkit.errors import ConfigError, StoreError
from rmqkit.toolkit.output import fault_lines


def test_an_error_of_the_system_names_the_file_and_the_next_step() -> None:
    """A file of another user is named with what to do about it."""
    told = fault_lines(PermissionError(errno.EACCES, "Permission denied", "/data/commitlog"))
    assert told == (
        [
            "/data/commitlog: Permission denied; give it to the user that runs rmqkit (chown),"
            " or run rmqkit as its owner"
        ],
        1,
    )
    told = fault_lines(PermissionError(errno.EACCES, "Permission denied", b"/d"))
    assert told is not None
    assert told[0][0].startswith("/d: Permission denied")
    assert fault_lines(PermissionError(errno.EPERM, "Operation not permitted")) == (
        ["[Errno 1] Operation not permitted"],
        1,
    )


def test_every_error_of_a_group_has_a_line_and_the_first_one_the_exit_code() -> None:
    """Wrong settings end with 2, other known errors with 1, and a defect has no line."""
    group = BaseExceptionGroup("both", [ConfigError("wrong"), ExceptionGroup("", [StoreError("damaged")])])
    assert fault_lines(group) == (["wrong", "damaged"], 2)
    assert fault_lines(StoreError("damaged")) == (["damaged"], 1)
    assert fault_lines(ValueError("a defect")) is None
