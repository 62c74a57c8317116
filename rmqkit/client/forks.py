"""Whether this process was forked, known without a system call, which costs a tenth of a gathered send."""

from __future__ import annotations

import os

_forks = 0


def _count() -> None:
    global _forks
    _forks += 1


def forks() -> int:
    """How many forks lie between the first process that imported this module and this one. An object that
    was made in another process remembers another number."""
    return _forks


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_count)

__all__ = ["forks"]
