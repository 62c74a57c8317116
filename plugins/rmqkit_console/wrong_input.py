"""Questions that cannot be answered."""

from __future__ import annotations


class WrongInput(ValueError):
    """What was asked for cannot be: its text says what may be asked."""


__all__ = ["WrongInput"]
