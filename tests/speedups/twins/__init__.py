"""Each module registers compiled functions beside the pure ones: see tests.speedups.comparison."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Imports every module of this package. Where a compiled module is missing, ImportError propagates."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
