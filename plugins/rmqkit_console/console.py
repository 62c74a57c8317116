"""What the pages of one console share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from attrs import frozen

from rmqkit.client import Client
from rmqkit.toolkit.times import moment_ms
from rmqkit_console.people import People
from rmqkit_console.resending import Resends
from rmqkit_console.samples import Samples
from rmqkit_console.settings import ConsoleSettings, Login, LogsIn
from rmqkit_console.wrong_input import WrongInput

#: Texts of forms and addresses that are longer are refused.
MAX_TEXT = 4_000


@frozen(kw_only=True)
class Console:
    """A console: the client of its cluster, its settings and what it remembers. Pages get the client of who
    has logged in as a user of the cluster."""

    client: Client
    settings: ConsoleSettings
    login: Login | None
    people: People
    logs_in: LogsIn
    samples: Samples
    resends: Resends
    now_ms: Callable[[], int]


@frozen
class Asked:
    """The query of a page. Every method raises WrongInput."""

    values: Mapping[str, str]

    def text(self, name: str, default: str = "") -> str:
        """A text; the default if it is missing."""
        found = self.values.get(name, default).strip()
        if len(found) > MAX_TEXT:
            raise WrongInput(f"{name} has {len(found)} characters: {MAX_TEXT} at most")
        return found

    def needed(self, name: str) -> str:
        found = self.text(name)
        if not found:
            raise WrongInput(f"{name} is missing")
        return found

    def number(self, name: str, default: int, least: int, most: int) -> int:
        found = self.text(name) or str(default)
        if not found.isascii() or not found.isdigit() or not least <= int(found) <= most:
            raise WrongInput(f"{name} is {found!r}: give a number from {least} to {most}")
        return int(found)

    def moment(self, name: str, default_ms: int) -> int:
        """A point in time in ms since 1970."""
        found = self.text(name)
        try:
            return moment_ms(found) if found else default_ms
        except ValueError as error:
            raise WrongInput(f"{name}: {error}") from error

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of the choices; the first if it is missing."""
        found = self.text(name) or choices[0]
        if found not in choices:
            raise WrongInput(f"{name} is {found!r}: choose {', '.join(choices)}")
        return found


#: Makes the values of a page, which are also its JSON.
View = Callable[[Console, Asked], Awaitable[dict[str, Any]]]


@frozen
class Page:
    """A page: its path, its name, the template that shows its values, and what makes them."""

    path: str
    title: str
    template: str
    view: View
    #: Whether the navigation has it.
    is_main: bool = True


__all__ = ["Asked", "Console", "Page", "View", "WrongInput"]
