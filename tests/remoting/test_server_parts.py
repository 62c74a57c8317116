"""The life of a connection at a server, from the first byte to the last (behaviour sheet, F)."""

from __future__ import annotations

import pytest
import trio

from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from tests.remoting.wire import PATIENCE_S, Handler, served

ECHO = 1


@pytest.mark.row("S314")
async def test_a_connection_is_known_served_and_forgotten() -> None:
    """A connection is listed with its address from the connect on; its requests reach the processor and the
    answers are sent; at its end it is removed and listeners are told."""
    seen: list[Peer] = []

    def echo(command: Command, peer: Peer) -> Outcome:
        seen.append(peer)
        return answer(command, body=command.body)

    async with served({ECHO: Handler(echo)}) as there:
        async with there.client() as client:
            host, port = client.stream.socket.getsockname()
            frame = encode(request(ECHO, opaque=5, body=b"body"))
            await client.stream.send_all(frame[:7])
            await client.stream.send_all(frame[7:] + frame)
            for _ in range(2):
                got = await client.receive()
                assert (got.code, got.opaque, got.body, got.is_response) == (0, 5, b"body", True)
            (peer,) = there.server.peers
            assert seen == [peer, peer]
            assert peer.remote_text == f"{host}:{port}"
            assert there.closed == []
        with trio.fail_after(PATIENCE_S):
            while there.server.peers:
                await trio.lowlevel.checkpoint()
        assert there.closed == [peer]
        assert peer.closed


@pytest.mark.row("S315")
@pytest.mark.parametrize("end", ["closed", "reset", "garbage"])
async def test_however_a_connection_ends_it_is_told_once(end: str) -> None:
    """Listeners are told once that a connection ended, by a close, a reset or bytes that are not a frame;
    other connections stay."""
    async with (
        served({ECHO: Handler(lambda command, peer: answer(command))}) as there,
        there.client() as other,
        there.client() as client,
    ):
        await other.ask(request(ECHO, opaque=1))
        await client.ask(request(ECHO, opaque=1))
        by_port = {int(peer.remote_text.rpartition(":")[2]): peer for peer in there.server.peers}
        stays, goes = (by_port[each.stream.socket.getsockname()[1]] for each in (other, client))
        if end == "closed":
            await client.stream.aclose()
        elif end == "reset":
            client.reset()
        else:
            await client.stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with trio.fail_after(PATIENCE_S):
            while goes in there.server.peers:
                await trio.lowlevel.checkpoint()
        assert there.closed == [goes]
        assert (goes.closed, stays.closed) == (True, False)
        assert (await other.ask(request(ECHO, opaque=2))).opaque == 2
