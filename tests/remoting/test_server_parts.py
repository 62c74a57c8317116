"""The life of a connection at a server, from the first byte to the last (behaviour sheet, F)."""

from __future__ import annotations

import pytest
import trio

from rmqkit.abc import Outcome, Peer
from rmqkit.errors import ConnectFailed, RequestTimeout
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.remoting.serve import error_answer
from tests.remoting.wire import PATIENCE_S, Handler, served

ECHO = 1


@pytest.mark.row("S314")
async def test_a_connection_is_known_served_and_forgotten() -> None:
    """Known with its address from the connect on; bytes become requests, the processor's answers become bytes; forgotten and told of at its end."""
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
    """By a close, by a reset, by bytes that are no frame: the connection is known before and forgotten behind it; others stay."""
    async with served({ECHO: Handler(lambda command, peer: answer(command))}) as there, there.client() as other, there.client() as client:
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


@pytest.mark.parametrize("error", [ConnectFailed("10.0.0.1:1", "refused"), RequestTimeout("10.0.0.1:1", 5)])
def test_a_clients_own_codes_do_not_travel(error: ConnectFailed | RequestTimeout) -> None:
    """A processor that could not reach somebody else answers SYSTEM_ERROR: 10001 and 10002 mean nothing to the peer."""
    response = error_answer(request(ECHO), error)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, str(error))
