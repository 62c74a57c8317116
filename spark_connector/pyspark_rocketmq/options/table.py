"""Options as fields of a class: their syntax, default, scope and meaning are declared once, and parsing, the
values in use and the reference in the documentation follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, fields, frozen

from rmqkit.errors import did_you_mean

BATCH, STREAM, WRITE = "batch", "stream", "write"
READ = (BATCH, STREAM)
ALL = (BATCH, STREAM, WRITE)
#: Spark passes options of CREATE TABLE twice, the second time with this prefix.
CATALOG_PREFIX = "option."
#: Properties of a catalog table that Spark includes in the options (Spark: TableCatalog.PROP_*).
CATALOG_OWN = frozenset(
    {"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"}
)


class OptionError(ValueError):
    """An option is unknown, wrong, missing, or in conflict with another. The text names the option and the
    remedy; it never contains a secret."""


@frozen
class Kind:
    """How the text of an option is parsed. `read` raises ValueError with the expected form."""

    label: str
    read: Callable[[str], Any]


@frozen
class Option:
    """One option. Created by `option`.

    default  as shown in the reference, empty for none
    where    BATCH, STREAM and WRITE as they apply
    aliases  other names, of Kafka's connector and the old RocketMQ connector
    secret   whether its value must never be shown
    field    the field that holds its value
    """

    name: str
    kind: Kind
    default: str
    where: tuple[str, ...]
    meaning: str
    aliases: tuple[str, ...]
    secret: bool
    field: str = ""


def option(
    name: str,
    kind: Kind,
    default: str = "",
    *,
    where: tuple[str, ...],
    meaning: str,
    absent: Any = None,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field of a class of options, see `Option`. Its default is the parsed text, or `absent` where there is
    none."""
    declared = Option(name, kind, default, where, meaning, aliases, secret)
    value = kind.read(default) if default else absent
    return field(default=value, repr=not secret, metadata={Option: declared})


def options_of(holder: type) -> tuple[Option, ...]:
    """The options declared by a class and those it is derived from, in order."""
    return tuple(evolve(each.metadata[Option], field=each.name) for each in fields(holder) if each.metadata)


def read_options(
    table: Sequence[Option],
    given: Mapping[str, str],
    where: str | None,
    *,
    elsewhere: Sequence[Option] = (),
    hints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Field -> value of the given options; names are case-insensitive.

    where      BATCH, STREAM or WRITE; options that do not apply there are refused. None accepts all
    elsewhere  options of other tables, for a hint where an option belongs
    hints      lower-cased names that are not accepted -> hint

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
                f"option {option.name} does not apply to {_doing(where)}, only to"
                f" {_and(_doing(each) for each in option.where)}"
            )
        try:
            value = option.kind.read(text.strip())
        except ValueError as error:
            shown = "" if option.secret else f" = {text!r}"
            raise OptionError(f"option {option.name}{shown}: {error}") from None
        if option.field in found and found[option.field] != value:
            raise OptionError(
                f"options {spelled[option.field]} and {name} mean the same and differ: use one of them"
            )
        found[option.field] = value
        spelled[option.field] = name
    return found


def _unknown(
    name: str,
    table: Sequence[Option],
    elsewhere: Sequence[Option],
    where: str | None,
    hints: Mapping[str, str],
) -> str:
    hint = hints.get(name.lower())
    if hint is not None:
        return f"option {name} is not accepted: {hint}"
    for option in elsewhere:
        if name.lower() in (option.name.lower(), *map(str.lower, option.aliases)):
            return (
                f"option {option.name} does not apply to {_doing(where)}, only to"
                f" {_and(_doing(each) for each in option.where)}"
            )
    names = [each.name for each in (*table, *elsewhere) if where is None or where in each.where]
    known = f"; known are {', '.join(sorted(names))}"
    return f"unknown option {name}{did_you_mean(name, names, known, 0.5)}"


def _doing(where: str | None) -> str:
    return {BATCH: "batch reading", STREAM: "streaming reads", WRITE: "writing"}.get(where or "", "this")


def _and(words: Any) -> str:
    return " and ".join(words)
