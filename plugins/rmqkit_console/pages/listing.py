"""Long lists of names, a part at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from rmqkit_console.console import Asked

#: Names on one page: each costs a question to every broker.
PER_PAGE = 50
_MOST = 1_000_000


@frozen
class Part:
    """The names of one page of those that contain the text `find`."""

    names: Sequence[str]
    find: str
    number: int
    pages: int
    total: int

    @property
    def described(self) -> dict[str, Any]:
        """The values that the template `listing.html` needs."""
        return {"find": self.find, "page": self.number, "pages": self.pages, "total": self.total}


def chosen(names: Sequence[str], asked: Asked) -> Part:
    """The part that `find` and `page` of the query say; a page beyond the last one is the last one. Raises
    WrongInput."""
    find = asked.text("find")
    matching = [name for name in names if find.lower() in name.lower()]
    pages = max(-(-len(matching) // PER_PAGE), 1)
    number = min(asked.number("page", 1, 1, _MOST), pages)
    first = (number - 1) * PER_PAGE
    return Part(matching[first : first + PER_PAGE], find, number, pages, len(matching))


__all__ = ["PER_PAGE", "chosen"]
