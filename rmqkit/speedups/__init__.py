"""The compiled part: functions of the hot path in Cython, each with a twin in Python.

The twin is the reference. It runs where the compiled part was not built, and where the variable
`RMQKIT_PURE` of the environment is neither empty nor `0`. A module of the hot path chooses once, when it is
imported::

    if IN_USE:
        from rmqkit.speedups._example import function as function
    else:
        def function(...): ...

Either all of it runs or none.
"""

from __future__ import annotations

import os

__all__ = ["BUILT", "IN_USE", "description"]

try:
    from rmqkit.speedups import _build
except ImportError:
    BUILT = IN_USE = False
    _reason = "the compiled part was not built"
else:
    BUILT = True
    IN_USE = os.environ.get("RMQKIT_PURE", "") in ("", "0")
    _reason = f"built by {_build.COMPILER}" if IN_USE else "RMQKIT_PURE is set"


def description() -> str:
    """Which code runs, and why: `compiled (built by gcc 12.2.0)`, `pure Python (RMQKIT_PURE is set)`."""
    return f"{'compiled' if IN_USE else 'pure Python'} ({_reason})"
