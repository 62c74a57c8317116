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
from rmqkit_console.rendering import url
from rmqkit_console.samples import MAX_SAMPLES, Rates, Sample
from rmqkit_console.serving import serve_pages
from tests.plugins.console import chromium
from tests.plugins.console.asking import NOW_MS, SECRET, Asking, asking

pytestmark = [
    pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.only_store(why="the store makes no difference"),
    pytest.mark.only_transport(why="the browser is another process"),
]
#: A file to which a picture of the overview is written.
PICTURE = "RMQKIT_CONSOLE_PICTURE"
_SCRIPT = "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"


@asynccontextmanager
async def served(ask: Asking) -> AsyncIterator[str]:
    """Where the console is."""
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve_pages, ask.console)
        yield f"http://{address}"
        nursery.cancel_scope.cancel()


async def _fill(ask: Asking) -> dict[str, Any]:
    """A topic, a group, a dead letter and samples; the place of a message."""
    client = ask.console.client
    topic = dlq_topic("billing")
    await client.admin.create_topic("Orders", queues=2)
    await client.admin.create_topic(topic, queues=1)
    async with client.producer("shop") as producer, client.pull_consumer("billing") as consumer:
        sent = await producer.send(Message("Orders", _SCRIPT.encode(), tag="new", keys=["order-1"]))
        await consumer.commit(sent.queue, 0)
        await producer.send(Message(topic, b"x", properties={props.DLQ_ORIGIN_TOPIC: "Orders"}))
    for number in range(MAX_SAMPLES):
        wave = math.sin(number / 20)
        rates = {"broker-a": Rates(4_000 + 900 * wave, 3_800 + 1_200 * wave)}
        ask.console.samples.keep(Sample(NOW_MS + number * 10_000, rates))
    return {"topic": "Orders", "id": sent.offset_message_id}


async def test_every_page(tmp_path: Path) -> None:
    """None has an error, in light and dark, and none is wider than a telephone."""
    async with asking(tmp_path / "data", allow_writes=True, listen="127.0.0.1:0") as ask:
        where = await _fill(ask)
        address = (await ask.values("/"))["brokers"][0]["address"]
        paths = [
            "/",
            url("/broker", address=address),
            "/topics?all=yes",
            "/topic?topic=Orders",
            "/groups",
            "/group?group=billing",
            "/messages?topic=Orders",
            url("/message", **where),
            "/dead-letters",
            "/dead-letters?group=billing",
            "/resends",
            "/backlogs",
            "/settings",
        ]
        async with served(ask) as console, chromium.browsing(tmp_path / "profile") as tab:
            for scheme, width in (("light", 1200), ("dark", 390)):
                dark = [{"name": "prefers-color-scheme", "value": scheme}]
                await tab.call("Emulation.setEmulatedMedia", features=dark)
                size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
                await tab.call("Emulation.setDeviceMetricsOverride", **size)
                for path in paths:
                    await tab.open(console + path)
                    assert tab.errors == [], path
                    assert await tab.value("document.querySelectorAll('h1').length") == 1, path
                    assert await tab.value("document.title") != "run", path
                    wide = await tab.value("document.documentElement.scrollWidth - window.innerWidth")
                    assert wide <= 0, (path, width)
                back = await tab.value("getComputedStyle(document.body).backgroundColor")
                assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 31)")
            unlabelled = (
                "[...document.querySelectorAll('input:not([type=hidden]), select')]"
                ".filter(each => !each.labels.length && !each.ariaLabel).length"
            )
            for path in ("/messages", "/dead-letters?group=billing", "/settings", "/topics"):
                await tab.open(console + path)
                assert await tab.value(unlabelled) == 0, path
            await _picture(tab, console)


async def _picture(tab: chromium.Tab, console: str) -> None:
    """Write a picture for the documentation when that is asked for."""
    file = os.environ.get(PICTURE)
    if file:
        await tab.call("Emulation.setEmulatedMedia", features=[])
        size = {"width": 1200, "height": 640, "deviceScaleFactor": 1, "mobile": False}
        await tab.call("Emulation.setDeviceMetricsOverride", **size)
        await tab.open(f"{console}/")
        await tab.picture(Path(file), height=640)


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
        fill = "document.getElementById({!r}).value = {!r}"
        await tab.value(fill.format("user", "ann"))
        await tab.value(fill.format("password", SECRET))
        await tab.value("document.querySelector('form.login').submit()")
        await tab.loaded()
        assert await tab.value("location.pathname") == "/topics"
        await tab.press("Tab")
        assert await tab.value("document.activeElement.className") == "skip"
        assert await tab.value("document.activeElement.getBoundingClientRect().left") >= 0
        assert tab.errors == []
