"""An HTTP client for the tests of pages."""

from __future__ import annotations

import h11
import trio


async def exchange(
    stream: trio.abc.Stream, http: h11.Connection, target: str, method: str = "GET", sent: bytes = b""
) -> tuple[h11.Response, str]:
    """One request on an open connection."""
    headers = [("Host", "localhost"), ("Content-Length", str(len(sent)))]
    for part in (
        h11.Request(method=method, target=target, headers=headers),
        h11.Data(data=sent),
        h11.EndOfMessage(),
    ):
        data = http.send(part)
        if data:
            await stream.send_all(data)
    response: h11.Response | None = None
    body: list[bytes] = []
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(65_536)))
        elif isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        else:
            assert response is not None, event
            return response, b"".join(body).decode()
