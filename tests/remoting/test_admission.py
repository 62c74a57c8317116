"""Hooks that decide whether a connection may stay."""

from __future__ import annotations

import logging

import pytest

from rmqkit.errors import RequestRefused
from rmqkit.plugin.hook_runner import Hooks
from rmqkit.plugin.request import BROKER, FILTER_SERVER, Caller
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import ResponseCode
from rmqkit.remoting.admission import Admission, guarding
from rmqkit.testing.peer import FakePeer
from tests.remoting.parts import ECHO, echo, numbered
from tests.remoting.wire import Handler, served


class Door(RpcHook):
    """Notes the callers, and raises the error that it is given."""

    def __init__(self, error: Exception | None = None, servers: frozenset[str] | None = None) -> None:
        self.error = error
        self.servers = servers
        self.seen: list[Caller] = []

    def connected(self, caller: Caller) -> None:
        self.seen.append(caller)
        if self.error is not None:
            raise self.error


async def test_a_hook_sees_each_connection_before_its_requests() -> None:
    """The caller has its address, the server's kind and the listener's address."""
    door = Door()
    async with served({ECHO: Handler(echo)}, rpc_hooks=(door,)) as there, there.client() as client:
        assert (await client.ask(numbered(ECHO, opaque=1))).code == 0
        (caller,) = door.seen
        assert caller.server == BROKER
        assert caller.transport.listener == there.address
        assert not caller.transport.is_encrypted
        assert caller.remote_text.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RequestRefused(ResponseCode.NO_PERMISSION, "not from there"), "not from there"),
        (ValueError("boom"), "rpc hook 'Door' failed: ValueError: boom"),
    ],
    ids=["refusal", "failure"],
)
async def test_a_refused_connection_is_closed_with_one_line(
    error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that fails admits nobody either."""
    async with served({ECHO: Handler(echo)}, rpc_hooks=(Door(error),)) as there, there.client() as client:
        assert await client.stream.receive_some() == b""
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 1
    assert lines[0].startswith("test: connection from 127.0.0.1:")
    assert lines[0].endswith(f" refused: {reason}")


def test_only_hooks_of_the_server_are_asked() -> None:
    """A hook that guards filter servers does not see the connections of a broker."""
    door = Door(RequestRefused(ResponseCode.NO_PERMISSION, "no"), frozenset({FILTER_SERVER}))
    hooks = Hooks.of("rpc hook", [door])
    Admission(guarding(hooks, BROKER)).check(FakePeer())
    assert door.seen == []
    with pytest.raises(RequestRefused, match="no"):
        Admission(guarding(hooks, FILTER_SERVER)).check(FakePeer(server=FILTER_SERVER))
