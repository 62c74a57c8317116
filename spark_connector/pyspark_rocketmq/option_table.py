"""Options as a table: how each is written, where it applies, what it means. Parsing and the reference in the documentation both go by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from attrs import field, frozen

BATCH, STREAM, WRITE = "batch", "stream", "write"
#: Spark hands options of CREATE TABLE on twice, the second time with this before the name.
CATALOG_PREFIX = "option."
#: What it says of a catalog table among the options (Spark: TableCatalog.PROP_*).
CATALOG_OWN = frozenset({"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"})


class OptionError(ValueError):
    """An option is unknown, wrong, missing, or at odds with another. The text names it and says what to write; it never holds a secret."""


@frozen
class Kind:
    """How the text of an option is read. `read` raises ValueError with what was expected."""

    label: str
    read: Callable[[str], Any]


@frozen(kw_only=True)
class Option:
    """One option.

    default  as the reference shows it, empty for none; `value` is what the field holds then
    where    BATCH, STREAM and WRITE as they apply
    aliases  other spellings, of Kafka's connector and the old RocketMQ one
    secret   its value is never shown
    """

    name: str
    kind: Kind
    default: str = ""
    where: tuple[str, ...]
    meaning: str
    aliases: tuple[str, ...] = ()
    secret: bool = False
    field: str = field()

    @field.default
    def _field_of_name(self) -> str:
        return snake(self.name)

    @property
    def value(self) -> Any:
        """What holds when the option is not given."""
        return self.kind.read(self.default) if self.default else None


def snake(name: str) -> str:
    """fetchOffset.numRetries -> fetch_offset_num_retries."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).replace(".", "_").lower()


def read_options(
    table: Sequence[Option],
    given: Mapping[str, str],
    where: str | None,
    *,
    elsewhere: Sequence[Option] = (),
    hints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Field -> value of the options that are given; the names may have any case.

    where      BATCH, STREAM or WRITE; an option that applies elsewhere only is refused. None refuses nothing
    elsewhere  options of other tables, so that the text can say where one belongs
    hints      lower-cased names that are not taken -> what to write instead
    Raises OptionError.
    """
    known = {spelling.lower(): option for option in table for spelling in (option.name, *option.aliases)}
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, text in given.items():
        if name.lower().startswith(CATALOG_PREFIX) or name.lower() in CATALOG_OWN:
            continue
        option = known.get(name.lower())
        if option is None:
            raise OptionError(_unknown(name, table, elsewhere, where, hints or {}))
        if where is not None and where not in option.where:
            raise OptionError(
                f"option {option.name} does not apply to {_doing(where)}, only to {_and(_doing(each) for each in option.where)}"
            )
        try:
            value = option.kind.read(text.strip())
        except ValueError as error:
            shown = "" if option.secret else f" = {text!r}"
            raise OptionError(f"option {option.name}{shown}: {error}") from None
        if option.field in found and found[option.field] != value:
            raise OptionError(f"options {spelled[option.field]} and {name} are the same thing and differ: give one of them")
        found[option.field] = value
        spelled[option.field] = name
    return found


def _unknown(name: str, table: Sequence[Option], elsewhere: Sequence[Option], where: str | None, hints: Mapping[str, str]) -> str:
    hint = hints.get(name.lower())
    if hint is not None:
        return f"option {name} is not taken: {hint}"
    for option in elsewhere:
        if name.lower() in (option.name.lower(), *map(str.lower, option.aliases)):
            return f"option {option.name} does not apply to {_doing(where)}, only to {_and(_doing(each) for each in option.where)}"
    names = {option.name.lower(): option.name for option in (*table, *elsewhere) if where is None or where in option.where}
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    asked = f"; did you mean {names[near[0]]}?" if near else f"; known are {', '.join(sorted(names.values()))}"
    return f"there is no option {name}{asked}"


def _doing(where: str | None) -> str:
    return {BATCH: "batch reading", STREAM: "streaming reads", WRITE: "writing"}.get(where or "", "this")


def _and(words: Any) -> str:
    return " and ".join(words)
