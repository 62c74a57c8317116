"""Dead letters: the groups that have some, those of one group, and what is sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from rmqkit.client import copying, dead_letter_views
from rmqkit.model.names import dlq_topic
from rmqkit_console.console import Asked, Console
from rmqkit_console.pages import bodies
from rmqkit_console.resending import Run
from rmqkit_console.wrong_input import WrongInput

#: Dead letters on the page of a group.
SHOWN = 100
#: Messages per second when a form does not say.
DEFAULT_RATE = 10.0
MAX_RATE = 10_000.0


async def dead_letters(console: Console, asked: Asked) -> dict[str, Any]:
    """The groups that have dead letters; with `group` the newest dead letters of that one. Raises NoRoute
    when it has none."""
    group = asked.text("group")
    if group:
        return {"group": group, "shown": SHOWN, "rate": DEFAULT_RATE, **await _of_group(console, group)}
    client = console.client
    found = await dead_letter_views.dead_letters(client.admin, client.groups)
    return {
        "group": "",
        "groups": [
            {
                "group": each.group,
                "messages": each.messages,
                "notResent": each.not_resent,
                "lastTimestamp": each.last_ms,
            }
            for each in found
        ],
    }


async def resends(console: Console, asked: Asked) -> dict[str, Any]:
    """What was sent again since the console started, the newest first."""
    rows = [attrs.asdict(run) | {"ids": len(run.ids)} for run in console.resends.runs]
    return {"resends": rows, "isRunning": any(run.is_running for run in console.resends.runs)}


def begin(console: Console, fields: Sequence[tuple[str, str]], user: str) -> Run:
    """Begin what the form of a group asks for. Raises WrongInput."""
    asked = Asked(dict(fields))
    group, which = asked.needed("group"), asked.choice("which", ("chosen", "all"))
    ids = frozenset(value for name, value in fields if name == "id") if which == "chosen" else frozenset()
    if which == "chosen" and not ids:
        raise WrongInput("no dead letter is chosen")
    to = asked.choice("to", (copying.ORIGINAL, copying.RETRY))
    text = asked.text("rate", str(DEFAULT_RATE))
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= MAX_RATE:
        raise WrongInput(f"rate is {text!r}: give a number above 0, at most {MAX_RATE:.0f}")
    return console.resends.begin(console.client, group, ids, to, rate, user)


async def _of_group(console: Console, group: str) -> dict[str, Any]:
    client, hide = console.client, console.settings.hide_bodies
    span = await copying.span(client, dlq_topic(group))
    newest = {queue: (max(first, end - SHOWN), end) for queue, (first, end) in span.items()}
    async with copying.reader(client) as reader:
        found = [message async for message in copying.read(reader, newest)]
    found.sort(key=lambda message: message.store_timestamp_ms, reverse=True)
    rows = []
    for message in found[:SHOWN]:
        said = dead_letter_views.dead_letter_dict(message)
        rows.append({name: said.get(name) for name in _SAID} | bodies.listed(message, hide=hide))
    return {"topic": dlq_topic(group), "messages": copying.count(span), "deadLetters": rows}


#: What only dead letters have.
_SAID = ("originTopic", "originMessageId", "cause", "attempts", "error")

__all__ = ["begin", "dead_letters", "resends"]
