"""etcd's client against servers that answer badly."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import h11
import pytest
import trio

from rmqkit_failover import etcd
from rmqkit_failover.coordinator import CoordinatorError, LeaseLost
from rmqkit_failover.etcd import EtcdCoordinator
from tests.ports import free_port

#: What a server answers to a path and a body: status and body, or None to close the connection.
Answer = Callable[[str, bytes], tuple[int, bytes] | None]
#: More than a call waits for, until it is sent.
_STEPS_OF_A_CALL = 60
EMPTY = b'{"header":{"revision":"7"}}'


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """A server of HTTP; its address."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listener.socket.getsockname()
        nursery.start_soon(partial(trio.serve_listeners, partial(_serve, answer), [listener]))
        yield f"http://{host}:{port}"
        nursery.cancel_scope.cancel()


async def _serve(answer: Answer, stream: trio.SocketStream) -> None:
    async with stream:
        # The client may close the connection at any time.
        with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
            await _answer_one(answer, stream)


async def _answer_one(answer: Answer, stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    path, body = "", b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(65_536))
        elif isinstance(event, h11.Request):
            path = event.target.decode()
        elif isinstance(event, h11.ConnectionClosed):
            return
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            break
    found = answer(path, body)
    if found is None:
        return
    status, text = found
    head = h11.Response(status_code=status, headers=[("Connection", "close")])
    data = connection.send(head) or b""
    data += connection.send(h11.Data(data=text)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    step = 7 if len(data) < 1_000 else len(data)
    for at in range(0, len(data), step):
        await stream.send_all(data[at : at + step])


@asynccontextmanager
async def client(
    *endpoints: str, timeout_s: float = 30, user: tuple[str, str] | None = None
) -> AsyncIterator[EtcdCoordinator]:
    coordinator = EtcdCoordinator(endpoints, "test/", timeout_s=timeout_s, user=user)
    try:
        yield coordinator
    finally:
        with trio.CancelScope(shield=True):
            await coordinator.aclose()


async def test_an_answer_in_pieces_is_joined() -> None:
    """The server sends seven bytes at a time. Numbers are texts."""
    async with serving(lambda path, body: (200, EMPTY)) as server, client(server) as coordinator:
        assert (await coordinator.read()).revision == 7


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (200, b"", "an answer that is not understood"),
        (200, b"garbage", "an answer that is not understood"),
        (200, b'{"header":{"revision":"x"}}', "an answer that is not understood"),
        (200, b'{"header":{"revision":1},"kvs":[{"key":"?","mod_revision":1}]}', "cannot be decoded"),
        (500, b"garbage", "HTTP status 500"),
        (503, b'{"message":"etcdserver: no leader","code":14}', "etcdserver: no leader"),
        (200, b'{"x":"' + b"x" * etcd.MAX_ANSWER_BYTES + b'"}', "an answer of more than"),
    ],
)
async def test_a_bad_answer_is_an_error(status: int, body: bytes, text: str) -> None:
    """Of the coordinator, with what is wrong in its text."""
    async with serving(lambda path, _: (status, body)) as server, client(server) as coordinator:
        with pytest.raises(CoordinatorError, match=text):
            await coordinator.read()


async def test_a_cut_connection_is_an_error() -> None:
    """The outcome is unknown, so no other endpoint is asked."""
    asked = []

    def answer(path: str, body: bytes) -> None:
        asked.append(path)

    async with serving(answer) as server, serving(answer) as other, client(server, other) as coordinator:
        with pytest.raises(CoordinatorError):
            await coordinator.write({}, [])
        assert asked == ["/v3/kv/txn"]


async def test_a_silent_server_is_an_error_in_time() -> None:
    """A connection is accepted by the operating system, and nobody answers."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()
    async with listener, client(f"http://{host}:{port}", timeout_s=0.05) as coordinator:
        with pytest.raises(CoordinatorError, match=r"does not answer within 0\.05 s"):
            await coordinator.read()


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    """Wherever it is cancelled, also while it is sent. What is left behind is an error of this test when it
    is collected."""
    async with serving(lambda path, body: (200, EMPTY)) as server:
        for steps in range(_STEPS_OF_A_CALL):
            async with client(server) as coordinator, trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.read)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        async with client(server) as coordinator:
            assert (await coordinator.read()).revision == 7
    gc.collect()


async def test_the_next_endpoint_is_used_when_one_is_not_reached() -> None:
    """And stays in use."""
    dead = f"http://127.0.0.1:{free_port()}"
    async with serving(lambda path, body: (200, EMPTY)) as server, client(dead, server) as coordinator:
        for _ in range(2):
            assert (await coordinator.read()).revision == 7
    async with client(dead) as coordinator:
        with pytest.raises(CoordinatorError, match="is not reached"):
            await coordinator.read()


async def test_a_lease_without_time_is_lost() -> None:
    """etcd answers a renewal of an unknown lease without a time."""
    body = b'{"result":{"header":{"revision":"1"},"ID":"5"}}'
    async with serving(lambda path, _: (200, body)) as server, client(server) as coordinator:
        with pytest.raises(LeaseLost):
            await coordinator.renew(5)


async def test_a_user_is_authenticated_and_again_when_the_token_is_old() -> None:
    """The call that was refused is made again with a new token. A refused password is in no error."""
    tokens: list[int] = []

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v3/auth/authenticate":
            given = json.loads(body)
            if given != {"name": "me", "password": "secret"}:
                return 400, b'{"message":"etcdserver: authentication failed","code":3}'
            tokens.append(len(tokens))
            return 200, b'{"token":"t%d"}' % len(tokens)
        if len(tokens) == 1:
            return 401, b'{"message":"etcdserver: invalid auth token","code":16}'
        return 200, EMPTY

    async with serving(answer) as server:
        async with client(server, user=("me", "secret")) as coordinator:
            assert (await coordinator.read()).revision == 7
        assert len(tokens) == 2
        async with client(server, user=("me", "wrong")) as coordinator:
            with pytest.raises(CoordinatorError, match="authentication failed") as raised:
                await coordinator.read()
            assert "wrong" not in str(raised.value)
