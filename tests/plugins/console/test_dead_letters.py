"""The pages of dead letters, and sending them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from rmqkit.client import Message, copying
from rmqkit.model import properties as props
from rmqkit.model.names import dlq_topic, retry_topic
from rmqkit.testing.listening import PATIENCE_S
from tests.plugins.console.asking import Asking, asking

TOPIC = dlq_topic("billing")


async def _kill(ask: Asking, *bodies: bytes, origin: str | None = "Orders") -> None:
    """Put dead letters of the group billing into its topic."""
    admin = ask.console.client.admin
    for topic in ("Orders", TOPIC, retry_topic("billing")):
        await admin.create_topic(topic, queues=1)
    said = {props.DLQ_CAUSE: "attempts", props.DLQ_ATTEMPTS: "3", props.DLQ_ERROR: "<b>no</b>"}
    if origin is not None:
        said[props.DLQ_ORIGIN_TOPIC] = origin
    async with ask.console.client.producer("shop") as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body, properties=said))


async def _post(ask: Asking, fields: Mapping[str, Any]) -> httpx.Response:
    token = await ask.token("/dead-letters", group="billing")
    form = {"token": token, "group": "billing", "rate": "1000"} | dict(fields)
    return await ask.http.post("/dead-letters/resend", data=form)


async def _ended(ask: Asking) -> dict[str, Any]:
    """The newest run, when it has ended."""
    with trio.fail_after(PATIENCE_S):
        while True:
            values: dict[str, Any] = await ask.values("/resends")
            if not values["isRunning"]:
                (first, *_) = values["resends"]
                return dict(first)
            await trio.lowlevel.checkpoint()


async def _bodies(ask: Asking, topic: str) -> list[bytes]:
    client = ask.console.client
    async with copying.reader(client) as reader:
        span = await copying.span(client, topic)
        return sorted([message.body async for message in copying.read(reader, span)])


async def test_groups_with_dead_letters(tmp_path: Path) -> None:
    """How many each has, and why each is one."""
    async with asking(tmp_path) as ask:
        assert "No group has dead letters." in await ask.page("/dead-letters")
        await _kill(ask, b"<script>", b"two")
        (row,) = (await ask.values("/dead-letters"))["groups"]
        assert (row["group"], row["messages"], row["notResent"]) == ("billing", 2, 2)
        assert '<a href="/dead-letters?group=billing">' in await ask.page("/dead-letters")
        html = await ask.page("/dead-letters", group="billing")
        assert "attempts after 3 deliveries: &lt;b&gt;no&lt;/b&gt;" in html
        assert "&lt;script&gt;" in html
        assert "This console only reads." in html
        assert "<button>Send again" not in html
        values = await ask.values("/dead-letters", group="billing")
        assert [each["originTopic"] for each in values["deadLetters"]] == ["Orders", "Orders"]
        await ask.page("/dead-letters", 404, group="none")


async def test_chosen_ones_are_sent_again(tmp_path: Path) -> None:
    """To their topic, and only these."""
    async with asking(tmp_path, allow_writes=True) as ask:
        await _kill(ask, b"one", b"two", b"three")
        letters = (await ask.values("/dead-letters", group="billing"))["deadLetters"]
        chosen = [each["offsetMessageId"] for each in letters if each["snippet"] != "two"]
        answer = await _post(ask, {"which": "chosen", "id": [*chosen, "none"]})
        assert (answer.status_code, answer.headers["location"]) == (303, "/resends")
        run = await _ended(ask)
        assert (run["sent"], run["failed"], run["missing"]) == (2, 0, 1)
        assert await _bodies(ask, "Orders") == [b"one", b"three"]
        html = await ask.page("/resends")
        assert "ended with failures" in html
        assert "3 chosen" in html


async def test_all_are_sent_again_once(tmp_path: Path) -> None:
    """To their group alone; the second time there is nothing left."""
    async with asking(tmp_path, allow_writes=True) as ask:
        await _kill(ask, b"one", b"two")
        for sent in (2, 0):
            assert (await _post(ask, {"which": "all", "to": "retry"})).status_code == 303
            assert (await _ended(ask))["sent"] == sent
        assert await _bodies(ask, retry_topic("billing")) == [b"one", b"two"]
        assert await _bodies(ask, "Orders") == []
        assert (await ask.values("/dead-letters"))["groups"][0]["notResent"] == 0
        assert "done" in await ask.page("/resends")


async def test_a_dead_letter_that_cannot_be_sent(tmp_path: Path) -> None:
    """The page says why."""
    async with asking(tmp_path, allow_writes=True) as ask:
        await _kill(ask, b"one", origin=None)
        await _post(ask, {"which": "all"})
        run = await _ended(ask)
        assert (run["sent"], run["failed"]) == (0, 1)
        assert "does not name its topic" in await ask.page("/resends")
        assert (await ask.values("/dead-letters"))["groups"][0]["notResent"] == 1


async def test_one_run_at_a_time(tmp_path: Path) -> None:
    """Another is refused until it has ended."""
    async with asking(tmp_path, allow_writes=True) as ask:
        await _kill(ask, b"one", b"two")
        assert (await _post(ask, {"which": "all", "rate": "0.001"})).status_code == 303
        refused = await _post(ask, {"which": "all"})
        assert refused.status_code == 400
        assert "are being sent again" in refused.text
        assert '<meta http-equiv="refresh"' in await ask.page("/resends")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"which": "chosen"}, "no dead letter is chosen"),
        ({"which": "some"}, "choose chosen, all"),
        ({"which": "all", "to": "Elsewhere"}, "choose original, retry"),
        ({"which": "all", "rate": "0"}, "give a number above 0"),
        ({"which": "all", "rate": "nan"}, "give a number above 0"),
        ({"which": "all", "group": ""}, "group is missing"),
    ],
)
async def test_forms_that_are_refused(tmp_path: Path, fields: dict[str, str], text: str) -> None:
    """Nothing is sent."""
    async with asking(tmp_path, allow_writes=True) as ask:
        await _kill(ask, b"one")
        answer = await _post(ask, fields)
        assert answer.status_code == 400
        assert text in answer.text
        assert (await ask.values("/resends"))["resends"] == []
        assert "Nothing since the console started." in await ask.page("/resends")


async def test_only_with_a_token_and_only_if_allowed(tmp_path: Path) -> None:
    """A form of another site, and a console that only reads, send nothing."""
    async with asking(tmp_path, allow_writes=True) as ask:
        await _kill(ask, b"one")
        forged = await _post(ask, {"which": "all", "token": "0" * 64})
        assert forged.status_code == 403
        assert "not of this session" in forged.text
        assert (await ask.values("/resends"))["resends"] == []
    async with asking(tmp_path / "reading") as ask:
        await _kill(ask, b"one")
        refused = await _post(ask, {"which": "all"})
        assert refused.status_code == 403
        assert "start it with --allow-writes" in refused.text
        assert await _bodies(ask, "Orders") == []
