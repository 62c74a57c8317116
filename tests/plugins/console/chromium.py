"""A browser without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from rmqkit.testing.listening import PATIENCE_S

#: The programs that are looked for.
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_LISTENING = b"DevTools listening on "
_MAX_ANSWER_BYTES = 32 * 1024 * 1024


class Tab:
    """One page of the browser. `errors` are what its console has told since the last `open`."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._session = ""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._loaded = False
        self.errors: list[str] = []

    async def begin(self) -> None:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command. Raises AssertionError for one that failed."""
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        await self._socket.send_message(json.dumps(command))
        while number not in self._answers:
            await self._receive()
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        self._loaded = False
        self.errors.clear()
        told = await self.call("Page.navigate", url=url)
        assert "errorText" not in told, told
        await self.loaded()

    async def loaded(self) -> None:
        """Wait until the page is there that was gone to last."""
        with trio.fail_after(PATIENCE_S):
            while not self._loaded:
                await self._receive()
        self._loaded = False

    async def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key]
            )

    async def picture(self, file: Path, *, width: int, height: int) -> None:
        """Write the top of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = await self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        await trio.Path(file).write_bytes(base64.b64decode(found["data"]))

    async def _receive(self) -> None:
        message = json.loads(await self._socket.get_message())
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, said = message["method"], message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(str(said["args"]))


_KEYS = {"Tab": 9, "Enter": 13}


@asynccontextmanager
async def browsing(directory: Path) -> AsyncIterator[Tab]:
    """A browser with one page, which ends with the context."""
    assert PROGRAM is not None
    words = [
        *(PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
        *("--remote-debugging-port=0", f"--user-data-dir={directory}", "about:blank"),
    ]
    process = await trio.lowlevel.open_process(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        stderr = process.stderr
        assert stderr is not None
        url = await _url(stderr)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, stderr)
            async with open_websocket_url(url, max_message_size=_MAX_ANSWER_BYTES) as socket:
                tab = Tab(socket)
                with trio.fail_after(PATIENCE_S):
                    await tab.begin()
                yield tab
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass


async def _url(stream: trio.abc.ReceiveStream) -> str:
    """Where the browser says that it listens."""
    said = b""
    with trio.fail_after(PATIENCE_S):
        while b"\n" not in said.partition(_LISTENING)[2]:
            part = await stream.receive_some()
            assert part, said
            said += part
    return said.partition(_LISTENING)[2].partition(b"\n")[0].decode().strip()
