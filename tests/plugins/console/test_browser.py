"""The pages in a browser."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.client import Message
from rmqkit.model import properties as props
from rmqkit.model.names import dlq_topic
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit_console.rendering import url
from rmqkit_console.samples import MAX_SAMPLES, Lag, Rates, Sample
from rmqkit_console.serving import serve_pages
from tests.plugins.console import chromium
from tests.plugins.console.asking import NOW_MS, SECRET, Asking, asking
from tests.plugins.console.test_audit import written
from tests.plugins.console.test_people import ALICE, DENIED
from tests.plugins.console.test_people import asking as checked

pytestmark = [
    pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.only_store(why="the store makes no difference"),
    pytest.mark.only_transport(why="the browser is another process"),
]
#: A folder to which pictures of the pages are written; those of the documentation are among them.
PICTURES = "RMQKIT_CONSOLE_PICTURES"
_SCRIPT = "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"
_BODY = b'{"order": 1007, "amount": 19.9, "currency": "EUR", "items": [{"sku": "coffee", "count": 2}]}'
#: Those of the documentation, with their names in docs.
DOCUMENTED = {
    ("overview", "light", 1200): "console-overview.png",
    ("message", "light", 1200): "console-message.png",
    ("overview", "dark", 375): "console-phone.png",
}
#: Every page that needs no name.
PLAIN = (
    "/",
    "/topics",
    "/groups",
    "/messages",
    "/dead-letters",
    "/resends",
    "/backlogs",
    "/settings",
    "/audit",
)
LOOKS = [("light", 1200), ("dark", 375)]
if PICTURES in os.environ:
    LOOKS += [("dark", 1200), ("light", 375)]
_UNLABELLED = (
    "[...document.querySelectorAll('input:not([type=hidden]), select')]"
    ".filter(each => !each.labels.length && !each.ariaLabel).length"
)


@asynccontextmanager
async def served(ask: Asking) -> AsyncIterator[str]:
    """Where the console is."""
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve_pages, ask.console)
        yield f"http://{address}"
        nursery.cancel_scope.cancel()


async def look(tab: chromium.Tab, url: str, scheme: str, width: int) -> None:
    """Open a page, which has a heading, no error and no field without a name, and fits into the window."""
    dark = [{"name": "prefers-color-scheme", "value": scheme}]
    await tab.call("Emulation.setEmulatedMedia", features=dark)
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)
    await tab.open(url)
    # A page that is refused has another status, which the browser tells.
    assert [each for each in tab.errors if "status of 40" not in each] == [], url
    assert await tab.value("document.querySelectorAll('h1').length") == 1, url
    assert await tab.value("document.title") != "run", url
    assert await tab.value("document.documentElement.scrollWidth") <= width, (url, width)
    cut = "[...document.querySelectorAll('dd')].filter(each => each.innerText && !each.clientWidth).length"
    assert await tab.value(cut) == 0, url
    assert await tab.value(_UNLABELLED) == 0, url
    back = await tab.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 31)")


async def picture(tab: chromium.Tab, name: str, scheme: str, width: int) -> None:
    """Write what is shown, if that is asked for."""
    folder = os.environ.get(PICTURES)
    if folder:
        height = min(await tab.value("document.documentElement.scrollHeight"), 1_400)
        file = DOCUMENTED.get((name, scheme, width), f"{name}-{scheme}-{width}.png")
        await tab.picture(Path(folder) / file, width=width, height=height)


async def _fill(ask: Asking) -> dict[str, Any]:
    """A topic, a group, a message that became a dead letter, and samples; the place of that message."""
    client = ask.console.client
    topic = dlq_topic("billing")
    await client.admin.create_topic("Orders", queues=2)
    await client.admin.create_topic(topic, queues=1)
    for name in ("shipping", "billing"):
        await client.groups.put(name, SubscriptionGroupConfig(group_name=name))
    async with client.producer("shop") as producer, client.pull_consumer("billing") as consumer:
        sent = await producer.send(Message("Orders", _BODY, tag="paid", keys=["order-1007"]))
        await consumer.commit(sent.queue, 0)
        await producer.send(Message("Orders", _SCRIPT.encode(), tag="new", keys=["order-1008"]))
        said = {props.DLQ_ORIGIN_TOPIC: "Orders", props.DLQ_CAUSE: "attempts", props.DLQ_ATTEMPTS: "16"}
        said |= {props.DLQ_ERROR: "ConnectionRefusedError: 10.0.0.7:5432", props.UNIQ_KEY: sent.message_id}
        await producer.send(Message(topic, _BODY, tag="paid", keys=["order-1007"], properties=said))
    for number in range(MAX_SAMPLES):
        wave = math.sin(number / 20)
        lag = max(0, round(900 + 1_800 * math.sin(number / 60)))
        ask.console.samples.keep(
            Sample(
                NOW_MS + number * 10_000,
                {"broker-a": Rates(4_000 + 900 * wave, 3_800 + 1_200 * wave, 0.41 + number / 8_000)},
                {},
                {"billing": Lag(lag, lag * 40), "shipping": Lag(lag // 9, lag * 4)},
            )
        )
    return {"topic": "Orders", "id": sent.offset_message_id}


async def test_every_page(tmp_path: Path) -> None:
    """With data, in light and dark, in a wide window and on a telephone; what a message brings does not
    run."""
    audit = written(tmp_path / "audit.jsonl")
    given: dict[str, Any] = {"allow_writes": True, "audit_file": audit, "listen": "127.0.0.1:0"}
    async with asking(tmp_path / "data", **given) as ask:
        where = await _fill(ask)
        address = (await ask.values("/"))["brokers"][0]["address"]
        pages = {
            "overview": "/",
            "broker": url("/broker", address=address),
            "topics": "/topics?all=yes",
            "topic": "/topic?topic=Orders",
            "groups": "/groups",
            "group": "/group?group=billing",
            "messages": "/messages?topic=Orders",
            "message": url("/message", **where),
            "dead-letters": "/dead-letters",
            "dead-letters-of-group": "/dead-letters?group=billing",
            "resends": "/resends",
            "backlogs": "/backlogs",
            "settings": "/settings",
            "audit": "/audit",
            "nothing": "/no-such-page",
        }
        async with served(ask) as console, chromium.browsing(tmp_path / "profile") as tab:
            for scheme, width in LOOKS:
                for name, path in pages.items():
                    await look(tab, console + path, scheme, width)
                    await picture(tab, name, scheme, width)


async def test_every_page_when_empty(tmp_path: Path) -> None:
    """Before a cluster in which nothing has happened."""
    async with (
        asking(tmp_path / "data", listen="127.0.0.1:0") as ask,
        served(ask) as console,
        chromium.browsing(tmp_path / "profile") as tab,
    ):
        for scheme, width in LOOKS:
            for path in PLAIN:
                await look(tab, console + path, scheme, width)
                assert await tab.value("document.querySelectorAll('[role=alert]').length") == 0, path
        await picture(tab, "empty-audit", scheme, width)


async def test_every_page_when_refused(tmp_path: Path) -> None:
    """As a user who may see one topic: what is missing is said, and other pages go on."""
    async with (
        checked(tmp_path / "data", cluster_login=True, listen="127.0.0.1:0") as ask,
        served(ask) as console,
        chromium.browsing(tmp_path / "profile") as tab,
    ):
        await look(tab, f"{console}/", "dark", 375)
        assert await tab.value("location.pathname") == "/login"
        await picture(tab, "login", "dark", 375)
        await _log_in(tab, *ALICE)
        for scheme, width in LOOKS:
            for path in PLAIN:
                await look(tab, console + path, scheme, width)
                if path not in ("/messages", "/resends", "/audit"):
                    said = await tab.value("document.querySelector('[role=alert]').innerText")
                    assert f"User:alice has {DENIED}" in said, path
                if path == "/":
                    await picture(tab, "refused", scheme, width)


async def _log_in(tab: chromium.Tab, user: str, password: str) -> None:
    fill = "document.getElementById({!r}).value = {!r}"
    await tab.value(fill.format("user", user))
    await tab.value(fill.format("password", password))
    await tab.value("document.querySelector('form.login').submit()")
    await tab.loaded()


async def test_by_keyboard(tmp_path: Path) -> None:
    """After the login the page that was asked for is there, and its first stop is the link to its content,
    which is then seen."""
    async with (
        asking(tmp_path / "data", user="ann", listen="127.0.0.1:0") as ask,
        served(ask) as console,
        chromium.browsing(tmp_path / "profile") as tab,
    ):
        await tab.open(f"{console}/topics")
        assert await tab.value("location.pathname") == "/login"
        await _log_in(tab, "ann", SECRET)
        assert await tab.value("location.pathname") == "/topics"
        await tab.press("Tab")
        assert await tab.value("document.activeElement.className") == "skip"
        assert await tab.value("document.activeElement.getBoundingClientRect().left") >= 0
        assert tab.errors == []
