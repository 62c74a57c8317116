"""The pages of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.client import Message, SendResult
from rmqkit_console.pages import messages as pages
from tests.plugins.console.asking import Asking, asking

SCRIPT = "<script>alert(1)</script>"


async def _send(ask: Asking, *messages: Message) -> list[SendResult]:
    """Create the topic Orders with one queue, and send the messages to it."""
    client = ask.console.client
    await client.admin.create_topic("Orders", queues=1)
    async with client.producer("shop") as producer:
        return [await producer.send(message) for message in messages]


def _bodies(values: Any) -> list[str]:
    return [each["snippet"] for each in values["messages"]]


async def test_the_newest_messages(tmp_path: Path) -> None:
    """They come first, at most as many as asked for; with a time the first from then on."""
    async with asking(tmp_path) as ask:
        await _send(ask, *(Message("Orders", b"%d" % number) for number in range(5)))
        assert _bodies(await ask.values("/messages", topic="Orders")) == ["4", "3", "2", "1", "0"]
        assert _bodies(await ask.values("/messages", topic="Orders", max=2)) == ["4", "3"]
        assert _bodies(await ask.values("/messages", topic="Orders", since="1h", max=2)) == ["0", "1"]
        assert _bodies(await ask.values("/messages", topic="Orders", until="1h")) == []


async def test_messages_that_are_looked_for(tmp_path: Path) -> None:
    """By key, tag, condition and id."""
    async with asking(tmp_path) as ask:
        results = await _send(
            ask,
            Message("Orders", b"0", tag="new", keys=["a"], properties={"amount": "1"}),
            Message("Orders", b"1", tag="paid", keys=["b"], properties={"amount": "20"}),
            Message("Orders", b"2", tag="new", keys=["b"], properties={"amount": "30"}),
        )
        assert _bodies(await ask.values("/messages", topic="Orders", key="b")) == ["2", "1"]
        assert _bodies(await ask.values("/messages", topic="Orders", key="b", until="1h")) == []
        assert _bodies(await ask.values("/messages", topic="Orders", tag="new")) == ["2", "0"]
        assert _bodies(await ask.values("/messages", topic="Orders", sql="amount > 10")) == ["2", "1"]
        for message_id in (results[1].message_id, results[1].offset_message_id):
            assert _bodies(await ask.values("/messages", topic="Orders", id=message_id)) == ["1"]
        assert _bodies(await ask.values("/messages", topic="Orders", id="0" * 32)) == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"key": "a", "tag": "b"}, "key and tag exclude each other"),
        ({"since": "yesterday"}, "give an age"),
        ({"max": "0"}, "give a number from 1 to 200"),
        ({"max": "201"}, "give a number from 1 to 200"),
        ({"key": "k" * 5_000}, "4000 at most"),
    ],
)
async def test_questions_that_cannot_be(tmp_path: Path, query: dict[str, Any], text: str) -> None:
    """The page says what may be asked."""
    async with asking(tmp_path) as ask:
        assert text in await ask.page("/messages", 400, topic="Orders", **query)


async def test_a_condition_that_is_none(tmp_path: Path) -> None:
    """The broker's words are shown."""
    async with asking(tmp_path) as ask:
        await _send(ask, Message("Orders", b"x"))
        html = await ask.page("/messages", 502, topic="Orders", sql="amount >")
        assert 'class="fault"' in html


async def test_no_messages(tmp_path: Path) -> None:
    """Without a topic the page is a form; an empty topic has none, and one that is missing is 404."""
    async with asking(tmp_path) as ask:
        await ask.console.client.admin.create_topic("Orders")
        assert "Name a topic." in await ask.page("/messages")
        assert "No message matches." in await ask.page("/messages", topic="Orders")
        await ask.page("/messages", 404, topic="None")


async def test_a_search_takes_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found until then is shown, and that there may be more."""
    monkeypatch.setattr(pages, "SEARCH_S", 0.0)
    async with asking(tmp_path) as ask:
        await _send(ask, Message("Orders", b"x"))
        assert "there may be more" in await ask.page("/messages", topic="Orders", tag="new")
        assert (await ask.values("/messages", topic="Orders"))["isPart"] is True


async def test_texts_of_strangers_are_escaped(tmp_path: Path) -> None:
    """Bodies, tags, keys and properties show what was written, and nothing runs."""
    async with asking(tmp_path) as ask:
        given = Message(
            "Orders", SCRIPT.encode(), tag=SCRIPT, keys=[SCRIPT], properties={"<b>": "<script src=//x>"}
        )
        (result,) = await _send(ask, given)
        where: dict[str, Any] = {"topic": "Orders", "id": result.offset_message_id}
        for html in (
            await ask.page("/messages", topic="Orders"),
            await ask.page("/messages", topic="Orders", key=SCRIPT),
            await ask.page("/messages", topic="Orders", tag=SCRIPT),
            await ask.page("/message", **where),
            await ask.page("/message", **where | {"as": "hex"}),
        ):
            assert "<script" not in html
            assert "<b>" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize(
    ("body", "form", "chosen", "text"),
    [
        (b'{"a":[1]}', "auto", "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a":[1]}', "text", "text", '{"a":[1]}'),
        (b"plain", "auto", "text", "plain"),
        (b"plain", "json", "text", "plain"),
        (b"\xff\x00A", "auto", "hex", f"00000000  {'ff 00 41':<48} ..A"),
        (b"\xffA", "text", "text", "\\xffA"),
        (b"[" * 100_000, "auto", "text", "[" * 65_536),
    ],
)
async def test_forms_of_a_body(tmp_path: Path, body: bytes, form: str, chosen: str, text: str) -> None:
    """JSON is indented, bytes are in hex, and what was asked for is given if it can be."""
    async with asking(tmp_path) as ask:
        (result,) = await _send(ask, Message("Orders", body))
        where: dict[str, Any] = {"topic": "Orders", "id": result.message_id, "as": form}
        (found,) = (await ask.values("/message", **where))["found"]
        assert (found["shownAs"], found["shownBody"]) == (chosen, text)
        assert f"Shown as {chosen}" in await ask.page("/message", **where)


async def test_one_message(tmp_path: Path) -> None:
    """Its properties, and which groups have consumed it."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        (result,) = await _send(ask, Message("Orders", b"x", properties={"shop": "one"}))
        async with client.pull_consumer("billing") as consumer:
            await consumer.commit(result.queue, 1)
        (found,) = (await ask.values("/message", topic="Orders", id=result.message_id))["found"]
        assert found["properties"]["shop"] == "one"
        assert [(each["group"], each["state"]) for each in found["consumers"]] == [("billing", "consumed")]
        html = await ask.page("/message", topic="Orders", id=result.message_id)
        assert "consumed" in html
        assert "has no message" in await ask.page("/message", 404, topic="Orders", id="0" * 32)
        assert "id is missing" in await ask.page("/message", 400, topic="Orders")
        assert "choose auto, text" in await ask.page(
            "/message", 400, topic="Orders", id=result.message_id, **{"as": "xml"}
        )


async def test_hidden_bodies(tmp_path: Path) -> None:
    """Neither list nor page nor JSON has them."""
    async with asking(tmp_path, hide_bodies=True) as ask:
        (result,) = await _send(ask, Message("Orders", b"secret words"))
        where: dict[str, Any] = {"topic": "Orders", "id": result.message_id}
        for text in (
            await ask.page("/messages", topic="Orders"),
            await ask.page("/message", **where),
            str(await ask.values("/messages", topic="Orders")),
            str(await ask.values("/message", **where)),
        ):
            assert "secret" not in text
        assert "Bodies are hidden" in await ask.page("/message", **where)
