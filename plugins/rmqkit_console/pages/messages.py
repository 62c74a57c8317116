"""Messages of a topic, found by key, id, time or expression, and one message."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import trio

from rmqkit.client import ClientError, MessageQueue, ReceivedMessage, copying, message_views
from rmqkit.model.subscription import SQL92, TAG
from rmqkit_console.console import Asked, Console
from rmqkit_console.pages import bodies
from rmqkit_console.wrong_input import WrongInput

#: Messages on a page, by default and at most.
DEFAULT_SHOWN, MAX_SHOWN = 32, 200
#: How many of the newest messages are searched when no time is given.
MAX_SEARCHED = 20_000
#: How long a search may take; then the page shows what was found.
SEARCH_S = 10.0
_END_MS = -1
_NOW_AND_LATER_MS = 0x7FFFFFFFFFFFFFFF


async def messages(console: Console, asked: Asked) -> dict[str, Any]:
    """Messages of a topic: with a key or an id those that have it; with a time the first from then on; else
    the newest, the newest first. Raises NoRoute, and WrongInput for questions that exclude each other."""
    found = Search(asked)
    if not found.topic:
        return found.described | {"messages": [], "isPart": False}
    listed, is_part = await found.run(console)
    hide = console.settings.hide_bodies
    rows = [bodies.listed(message, hide=hide) for message in listed]
    return found.described | {"messages": rows, "isPart": is_part}


class Search:
    """What is looked for. Raises WrongInput."""

    def __init__(self, asked: Asked) -> None:
        self.topic = asked.text("topic")
        self.key, self.id = asked.text("key"), asked.text("id")
        self.tag, self.sql = asked.text("tag"), asked.text("sql")
        self.since, self.until = asked.text("since"), asked.text("until")
        self.since_ms = asked.moment("since", 0)
        self.until_ms = asked.moment("until", _END_MS)
        self.most = asked.number("max", DEFAULT_SHOWN, 1, MAX_SHOWN)
        given = [name for name in ("key", "id", "tag", "sql") if getattr(self, name)]
        if len(given) > 1:
            raise WrongInput(f"{' and '.join(given)} exclude each other")

    @property
    def described(self) -> dict[str, Any]:
        names = ("topic", "key", "id", "tag", "sql", "since", "until")
        return {name: getattr(self, name) for name in names} | {"max": self.most}

    async def run(self, console: Console) -> tuple[list[ReceivedMessage], bool]:
        """The messages, and whether there may be more that were not looked at."""
        client = console.client
        if self.id:
            try:
                return await message_views.messages_by_id(client.admin, self.id, self.topic), False
            except ClientError as error:
                if type(error) is not ClientError:
                    raise
                return [], False
        if self.key:
            end_ms = _NOW_AND_LATER_MS if self.until_ms == _END_MS else max(self.until_ms - 1, 0)
            found = await client.admin.query_by_key(
                self.topic, self.key, max_messages=self.most, begin_ms=self.since_ms, end_ms=end_ms
            )
            return sorted(found, key=_newest_first)[: self.most], False
        return await self._read(console)

    async def _read(self, console: Console) -> tuple[list[ReceivedMessage], bool]:
        offsets = await copying.span(console.client, self.topic, self.since_ms, self.until_ms)
        forward = bool(self.since)
        if not forward:
            offsets = self._newest(offsets)
        found: list[ReceivedMessage] = []
        expression, kind = (self.sql, SQL92) if self.sql else (self.tag or "*", TAG)
        with trio.move_on_after(SEARCH_S) as scope:
            async with copying.reader(console.client) as consumer:
                for queue, span in offsets.items():
                    of_queue: list[ReceivedMessage] = []
                    part = copying.read(consumer, {queue: span}, expression, kind)
                    async with aclosing(part) as reading:
                        async for message in reading:
                            of_queue.append(message)
                            if forward and len(of_queue) == self.most:
                                break
                            if len(of_queue) > self.most * 2:
                                del of_queue[: self.most]
                    found += of_queue
        order = _oldest_first if forward else _newest_first
        return sorted(found, key=order)[: self.most], scope.cancelled_caught

    def _newest(self, offsets: copying.Span) -> dict[MessageQueue, tuple[int, int]]:
        """The last offsets of each queue: as many as are shown, or searched."""
        searches = bool(self.tag or self.sql)
        each = max(MAX_SEARCHED // max(len(offsets), 1), 1) if searches else self.most
        return {queue: (max(begin, end - each), end) for queue, (begin, end) in offsets.items()}


async def message(console: Console, asked: Asked) -> dict[str, Any]:
    """One message with its properties, its body, the groups that consumed it and its trace; several if its
    producer sent it again. Raises ClientError when there is none."""
    client, topic, message_id = console.client, asked.needed("topic"), asked.needed("id")
    form = asked.choice("as", bodies.FORMS)
    shown = []
    for found in await message_views.messages_by_id(client.admin, message_id, topic):
        view = await message_views.message_view(client.admin, client.groups, found)
        values = message_views.view_dict(view) | {"bodyBytes": len(found.body)}
        if console.settings.hide_bodies:
            values.pop("body", None)
            values.pop("bodyHex", None)
            text, chosen = None, form
        else:
            text, chosen = bodies.shown(found.body, form)
        shown.append(values | {"shownBody": text, "shownAs": chosen})
    return {
        "topic": topic,
        "id": message_id,
        "forms": bodies.FORMS[1:],
        "shownBytes": bodies.MAX_SHOWN_BYTES,
        "found": shown,
    }


def _newest_first(message: ReceivedMessage) -> tuple[int, int]:
    return -message.store_timestamp_ms, -message.queue_offset


def _oldest_first(message: ReceivedMessage) -> tuple[int, int]:
    return message.store_timestamp_ms, message.queue_offset


__all__ = ["message", "messages"]
