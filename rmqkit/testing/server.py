"""Contract of a server as tests. Subclass `ServerContract` and define how the server is made; pytest then
runs the tests.

    class TestMine(ServerContract):
        def make_server(self) -> Server:
            return MyServer()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.server import Server, ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.protocol.command import Command
from rmqkit.remoting.serving import listen_on
from rmqkit.testing.broker import test_config
from rmqkit.testing.calls import calling
from rmqkit.testing.listening import PATIENCE_S

#: A request code that no server handles.
UNKNOWN_CODE = 2_000_000_000
ANYWHERE = Address.parse("memory://127.0.0.1:0")


class ServerContract(ABC):
    """Tests of a server."""

    @abstractmethod
    def make_server(self) -> Server:
        """A new server."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> Config:
        return test_config(tmp_path)

    @pytest.fixture
    def registry(self, config: Config) -> Registry:
        return loader.load(config)

    @asynccontextmanager
    async def running(
        self, config: Config, registry: Registry, *listeners: Address
    ) -> AsyncIterator[ServerHandle]:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(PATIENCE_S):
                listen = listen_on(registry, listeners, "under test")
                handle: ServerHandle = await nursery.start(self.make_server().run, config, registry, listen)
            yield handle
            nursery.cancel_scope.cancel()

    async def test_it_says_where_it_listens(self, config: Config, registry: Registry) -> None:
        """The server reports one address for each listener, with the actual port."""
        async with self.running(config, registry, ANYWHERE, ANYWHERE) as handle:
            assert [address.scheme for address in handle.addresses] == ["memory", "memory"]
            assert len({address.port for address in handle.addresses} - {0}) == 2

    async def test_it_answers_what_it_does_not_know(self, config: Config, registry: Registry) -> None:
        """An unknown request gets an error code and a text, on every listener, and the server continues."""
        async with self.running(config, registry, ANYWHERE, ANYWHERE) as handle:
            for address in handle.addresses:
                async with calling(address, config, registry) as (call, _):
                    for _ in range(2):
                        answer = await call(Command(code=UNKNOWN_CODE, body=b"\x00"))
                        assert answer.code != 0
                        assert answer.remark

    async def test_cancelled_it_gives_its_addresses_back(self, config: Config, registry: Registry) -> None:
        """After a cancellation another server can listen on the same addresses at once."""
        async with self.running(config, registry, ANYWHERE) as handle:
            (address,) = handle.addresses
        async with self.running(config, registry, address) as handle:
            assert list(handle.addresses) == [address]

    async def test_an_address_that_is_taken(self, config: Config, registry: Registry) -> None:
        """An address in use stops the start with ConfigError and does not affect the server that uses it."""
        async with self.running(config, registry, ANYWHERE) as handle:
            (address,) = handle.addresses
            with pytest.RaisesGroup(ConfigError, allow_unwrapped=True, flatten_subgroups=True):
                async with self.running(config, registry, address):
                    pass
            async with calling(address, config, registry) as (call, _):
                assert (await call(Command(code=UNKNOWN_CODE))).remark
