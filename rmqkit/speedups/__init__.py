"""Whether the compiled part runs: modules in Cython, each beside the Python that it speeds up.

The Python twin is the reference. It runs where the compiled part was not built, and where the variable
`RMQKIT_PURE` of the environment is neither empty nor `0`. A module chooses once, at its end, between twins
that satisfy one protocol::

    if IN_USE:
        from rmqkit.model import _columns

    looks: Looks = _columns if IN_USE else values

Either all of it runs or none. In a checkout, modules that are older than their sources, or missing, could
give other results than the Python beside them, or not be found: then none of them runs, and a line in the log
names the command that builds them.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["BUILT", "IN_USE", "description"]

_HERE = Path(__file__).resolve().parent


def _is_current(built_from: str) -> bool:
    """Whether the modules fit their sources. Wheels contain no sources, so that only a checkout is read."""
    if not (_HERE / "_build.pyx").exists():
        return True
    from rmqkit.speedups import stamp

    if stamp.fits(_HERE.parents[1], built_from):
        return True
    from logging import getLogger

    getLogger(__name__).warning("pure Python runs: %s", _STALE)
    return False


_STALE = "the compiled part is not that of the sources, `make speedups` builds it"
try:
    from rmqkit.speedups import _build
except ImportError:
    BUILT = IN_USE = False
    _reason = "the compiled part was not built"
else:
    BUILT = _is_current(_build.SOURCES)
    IN_USE = BUILT and os.environ.get("RMQKIT_PURE", "") in ("", "0")
    _reason = f"built by {_build.COMPILER}" if IN_USE else "RMQKIT_PURE is set" if BUILT else _STALE


def description() -> str:
    """Which code runs, and why: `compiled (built by gcc 12.2.0)`, `pure Python (RMQKIT_PURE is set)`."""
    return f"{'compiled' if IN_USE else 'pure Python'} ({_reason})"
