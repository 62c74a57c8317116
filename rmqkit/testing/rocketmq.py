"""RocketMQ inside a test: a name server and brokers in this process, with faults on request.

`rocketmq_in_loop` is for trio: everything runs in the test's own loop, over TCP or without sockets, and a
clock that jumps moves the servers too. `rocketmq_in_thread` is for asyncio, for tests without an event loop,
and for programs in other processes. The fixtures of `rmqkit.testing.fixtures` are made of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import trio
import trio.testing
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import define, field, frozen

from rmqkit.broker.run.running import RunningBroker
from rmqkit.client import BlockingClient, Client
from rmqkit.client.settings import ClientKeywords
from rmqkit.config import Config
from rmqkit.config import load as load_settings
from rmqkit.config.loading import UNKNOWN_SETTING
from rmqkit.errors import ConfigError, did_you_mean
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin import loader
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.transport import Address
from rmqkit.remoting.dial import TCP
from rmqkit.testing import faults
from rmqkit.testing.broker import refuse_asyncio, scheme_keys, serving_broker, serving_namesrv, test_config
from rmqkit.testing.choice import chosen
from rmqkit.testing.clock import LoopClock, SettableClock, threads_hold_the_clock
from rmqkit.testing.faults import NAME_SERVER, Fault, FaultPlugin, Faults, Strike, WhichRequests
from rmqkit.toolkit.system_clock import SystemClock

MEMORY = "memory"
#: Stores that lose their messages when a broker stops.
_FORGETTING = ("memory",)
_REMARK = "a fault of the test"
#: Time after which a broker is made to register once more.
_RETRY_S = 0.1


class SetupKeywords(TypedDict, total=False):
    """Keywords of `Setup`."""

    brokers: int
    store: str | None
    transport: str | None
    settings: Mapping[str, Any]
    plugins: Iterable[tuple[str, object]]
    addresses: Mapping[str, str]


@frozen
class Setup:
    """What a test wants.

    brokers    number of brokers: broker-a, broker-b, ...
    store      of the brokers, default memory or the option --store
    transport  scheme of all servers; default tcp, or `memory` where the trio clock is a MockClock
    settings   of brokers and name server, keys as in broker.conf
    plugins    (name, plugin) pairs in addition to the installed plugins
    addresses  of servers by name, `host:port`; others have free ports
    """

    brokers: int = field(default=1)
    store: str | None = None
    transport: str | None = None
    settings: Mapping[str, Any] = field(factory=dict)
    plugins: Iterable[tuple[str, object]] = ()
    addresses: Mapping[str, str] = field(factory=dict)

    @brokers.validator
    def _check_brokers(self, _attribute: object, value: object) -> None:
        if not isinstance(value, int) or not 1 <= value <= 26:
            raise ConfigError(f"brokers = {value!r}: must be a number from 1 to 26")

    @settings.validator
    def _check_settings(self, _attribute: object, value: Mapping[str, Any]) -> None:
        unknown = [
            warning
            for warning in load_settings(environ={}, flags=dict(value)).warnings
            if warning.startswith(UNKNOWN_SETTING)
        ]
        if unknown:
            raise ConfigError("; ".join(unknown))

    @property
    def names(self) -> list[str]:
        """The names of the brokers."""
        return [f"broker-{chr(ord('a') + number)}" for number in range(self.brokers)]


class _Servers:
    """What a test does with its servers, in the loop and from another thread alike."""

    def __init__(self, setup: Setup, transport: str, table: Faults, addresses: dict[str, Address]) -> None:
        self._setup = setup
        self._faults = table
        #: By server, of all that have been started.
        self._addresses = addresses
        #: Scheme of the servers; a client that connects to brokers needs it: `Client(namesrv_text,
        #: transport=transport)`. The plain Client is enough for tcp.
        self.transport = transport

    @property
    def namesrv_text(self) -> str:
        """The address of the name server, `host:port`; `memory://host:port` without sockets."""
        return str(self._addresses[NAME_SERVER])

    @property
    def brokers(self) -> list[str]:
        """The names of the brokers: broker-a, broker-b, ..."""
        return self._setup.names

    def address(self, broker: str | None = None) -> str:
        """The address of a broker for clients, `host:port`; of the only one without a name."""
        address = self._addresses[self._only(broker)]
        return f"{address.host}:{address.port}"

    def client(self, **settings: Unpack[ClientKeywords]) -> Client:
        """A client of these servers, to be opened with `async with`. The keywords are those of `Client`."""
        settings.setdefault("transport", self.transport)
        return Client(self.namesrv_text, **settings)

    # --- faults ---------------------------------------------------------------------------------------------

    def fail_next(
        self, code: int, times: int | None = 1, *, remark: str = _REMARK, **which: Unpack[WhichRequests]
    ) -> Fault:
        """Answer the next requests with an error code, without processing them.

        code   a ResponseCode, such as SYSTEM_BUSY
        times  number of requests; None: until `remove` of the result is called
        which  `request`, `queue`, `topic` and `server`, see `WhichRequests`

        Of several faults that match a request, the oldest strikes. Raises ValueError for an unknown kind of
        request and for a code that means success.
        """
        return self._add(faults.failing(code, remark), times, which)

    def delay(self, seconds: float, times: int | None = 1, **which: Unpack[WhichRequests]) -> Fault:
        """Process the next requests this much later. Other requests overtake them, also those of the same
        connection. The arguments are those of `fail_next`."""
        return self._add(faults.delaying(seconds), times, which)

    def drop_answer(self, times: int | None = 1, **which: Unpack[WhichRequests]) -> Fault:
        """Process the next requests, but do not answer them: a message is stored, and its sender does not
        know. The arguments are those of `fail_next`."""
        return self._add(faults.losing_answers(), times, which)

    def cut_next(self, times: int | None = 1, **which: Unpack[WhichRequests]) -> Fault:
        """Close the connection when the next requests arrive, without processing them. The arguments are
        those of `fail_next`."""
        return self._add(faults.cutting(), times, which)

    def heal(self) -> None:
        """End all faults. Delays that have begun go on."""
        self._faults.clear()

    def _add(self, strike: Strike, times: int | None, which: WhichRequests) -> Fault:
        queue, server = which.get("queue"), which.get("server")
        if server is not None:
            self._check(server)
        if isinstance(queue, MessageQueue):
            self._check(queue.broker_name)
        return self._faults.add(strike, times=times, **which)

    def _check(self, server: str) -> str:
        """The name of a server, after a check. Raises ValueError for a server that does not exist."""
        known = [*self.brokers, NAME_SERVER]
        if server not in known:
            hint = did_you_mean(server, known)
            raise ValueError(f"there is no server {server!r}{hint or '; there are ' + ', '.join(known)}")
        return server

    def _only(self, server: str | None) -> str:
        """The named server; without a name the only broker."""
        if server is None and len(self.brokers) > 1:
            raise ValueError(f"there are several brokers, name one of {', '.join(self.brokers)}")
        return self._check(server or self.brokers[0])


@define(eq=False)
class _Server:
    """One server. `serve` runs it in a context that yields its address; `stop` ends it, `ended` follows."""

    serve: Callable[[], AbstractAsyncContextManager[Address]]
    stop: trio.Event = field(factory=trio.Event)
    ended: trio.Event | None = None


class RocketMQ(_Servers):
    """A name server and brokers in the loop of a trio test. Made by `rocketmq_in_loop`."""

    def __init__(
        self, setup: Setup, transport: str, directory: Path, nursery: trio.Nursery, clock: Clock | None
    ) -> None:
        wanted = {name: Address.parse(text) for name, text in setup.addresses.items()}
        super().__init__(setup, transport, Faults(), wanted)
        self._clock = clock
        self._directory = directory
        self._nursery = nursery
        self._running: dict[str, RunningBroker] = {}
        self._absent: list[str] = []
        self._servers = {NAME_SERVER: _Server(self._serve_namesrv)} | {
            name: _Server(partial(self._serve_broker, name)) for name in self.brokers
        }

    def now_ms(self) -> int:
        """The time of the servers, in ms since 1970."""
        return (self._clock or SystemClock()).now_ms()

    def client(self, **settings: Unpack[ClientKeywords]) -> Client:
        """A client of these servers, to be opened with `async with`. The keywords are those of `Client`. Its
        timestamps follow a clock that jumps."""
        if self._clock is None:
            return super().client(**settings)
        settings.setdefault("transport", self.transport)
        return Client(self.namesrv_text, now_ms=self._clock.now_ms, **settings)

    async def start_all(self) -> None:
        """Start the name server, then all brokers at once."""
        await self._start(NAME_SERVER)
        async with trio.open_nursery() as nursery:
            for name in self.brokers:
                nursery.start_soon(self._start, name)

    async def stop_all(self) -> None:
        """Stop everything, without waiting for delayed requests."""
        self.heal()
        self.cut()
        async with trio.open_nursery() as nursery:
            for name in self.brokers:
                nursery.start_soon(self.stop, name)
        await self.stop(NAME_SERVER)

    async def stop(self, server: str | None = None) -> None:
        """Stop a broker gracefully: it unregisters, answers what it has accepted, and ends. Does nothing when
        it is stopped.

        server  the broker, or "namesrv"; needed when there are several brokers
        """
        chosen_server = self._servers[self._only(server)]
        if chosen_server.ended is not None:
            chosen_server.stop.set()
            await chosen_server.ended.wait()

    async def start(self, server: str | None = None) -> None:
        """Start a stopped broker again, at its address and with its messages. The arguments are those of
        `stop`. Raises ConfigError for a store that keeps no messages. Does nothing when it runs."""
        name = self._only(server)
        self._check_durable(name)
        await self._start(name)
        if name == NAME_SERVER:
            await self._register(self.brokers)

    async def restart(self, server: str | None = None) -> None:
        """`stop`, then `start`."""
        name = self._only(server)
        self._check_durable(name)
        await self.stop(name)
        await self.start(name)

    def cut(self, server: str | None = None) -> None:
        """Close all connections to a broker, by default to every broker. Clients may connect again at
        once."""
        self._faults.cut(self.brokers if server is None else [self._check(server)])

    @asynccontextmanager
    async def away(self, server: str | None = None) -> AsyncIterator[None]:
        """In the block a broker cannot be reached, although it runs: its connections are cut, new ones end at
        their first request, and the name server drops its routes. Leaving the block waits until it has
        registered again. Clients learn of it when they next look up their routes.

        server  the broker, or "namesrv"; needed when there are several brokers
        """
        name = self._only(server)
        self._absent.append(name)
        try:
            with self._faults.away(name):
                yield
        finally:
            self._absent.remove(name)
        await self._register(self.brokers if name == NAME_SERVER else [name])

    async def _start(self, name: str) -> None:
        server = self._servers[name]
        if self._is_stopped(name):
            await self._nursery.start(self._run, server)

    async def _run(self, server: _Server, task_status: trio.TaskStatus[None]) -> None:
        server.stop, server.ended = trio.Event(), trio.Event()
        ended = server.ended
        try:
            async with server.serve():
                task_status.started()
                await server.stop.wait()
        finally:
            server.ended = None
            ended.set()

    @asynccontextmanager
    async def _serve_namesrv(self) -> AsyncIterator[Address]:
        known = self._addresses.get(NAME_SERVER)
        listen = str(known or Address(self.transport, "127.0.0.1", 0))
        config = self._config(NAME_SERVER, namesrvListen=listen)
        registry = loader.load(config, extra=self._plugins(NAME_SERVER))
        async with serving_namesrv(config, registry) as address:
            self._addresses[NAME_SERVER] = address
            yield address

    @asynccontextmanager
    async def _serve_broker(self, name: str) -> AsyncIterator[Address]:
        known = self._addresses.get(name)
        port = known.port if known is not None else 0
        config = self._config(name, brokerName=name, namesrvAddr=self.namesrv_text, listenPort=port)
        registry = loader.load(config, extra=self._plugins(name))
        async with serving_broker(config, registry, self.transport, "", self._clock) as running:
            self._addresses[name] = running.address
            self._running[name] = running
            try:
                yield running.address
            finally:
                del self._running[name]

    def _config(self, name: str, **keys: Any) -> Config:
        setup = self._setup
        chosen_keys = {"store": setup.store} if setup.store is not None else {}
        return test_config(
            self._directory / name, **{**chosen_keys, **scheme_keys(self.transport), **setup.settings, **keys}
        )

    def _plugins(self, name: str) -> list[tuple[str, object]]:
        return [("faults", FaultPlugin(self._faults, name)), *self._setup.plugins]

    async def _register(self, brokers: Iterable[str]) -> None:
        """Have brokers register at once instead of in their next round, and wait for it. A broker or name
        server that is absent or stopped is not waited for."""
        for name in brokers:
            registered = self._faults.registration(name)
            while not registered.is_set():
                running = self._running.get(name)
                if (
                    running is None
                    or {name, NAME_SERVER} & set(self._absent)
                    or self._is_stopped(NAME_SERVER)
                ):
                    break
                for notify in running.context.topics.on_change:
                    notify()
                # An attempt fails on a connection whose end has not been noticed yet.
                with trio.move_on_after(_RETRY_S):
                    await registered.wait()

    def _is_unreachable(self, name: str) -> bool:
        return name in self._absent or self._is_stopped(name)

    def _is_stopped(self, name: str) -> bool:
        return self._servers[name].ended is None

    def _check_durable(self, name: str) -> None:
        store = self._setup.store or chosen().store
        if name != NAME_SERVER and store in _FORGETTING:
            raise ConfigError(
                f"{name} would start without its messages, because the store {store} keeps none: use"
                ' @pytest.mark.rocketmq(store="mmap"), or `away` for a broker that cannot be reached'
            )


class ThreadedRocketMQ(_Servers):
    """A name server and brokers in another thread, for clients in any thread or process of this machine. Made
    by `rocketmq_in_thread`. Its methods block: `stop` and `restart` for some hundredths of a second."""

    def __init__(self, inner: RocketMQ, portal: BlockingPortal) -> None:
        super().__init__(inner._setup, inner.transport, inner._faults, inner._addresses)
        self._inner = inner
        self._portal = portal

    def blocking_client(self, **settings: Unpack[ClientKeywords]) -> BlockingClient:
        """A client for tests without an event loop, to be opened with `with`."""
        settings.setdefault("transport", self.transport)
        return BlockingClient(self.namesrv_text, **settings)

    def stop(self, server: str | None = None) -> None:
        """Stop a broker (`RocketMQ.stop`)."""
        self._call(self._inner.stop, server)

    def start(self, server: str | None = None) -> None:
        """Start a stopped broker (`RocketMQ.start`)."""
        self._call(self._inner.start, server)

    def restart(self, server: str | None = None) -> None:
        """Stop a broker and start it again (`RocketMQ.restart`)."""
        self._call(self._inner.restart, server)

    def cut(self, server: str | None = None) -> None:
        """Cut the connections of a server, or of all of them (`RocketMQ.cut`)."""
        self._call(self._inner.cut, server)

    @contextmanager
    def away(self, server: str | None = None) -> Iterator[None]:
        """A block in which a broker cannot be reached (`RocketMQ.away`)."""
        absence = self._portal.wrap_async_context_manager(self._inner.away(server))
        _in_thread(absence.__enter__)
        try:
            yield
        finally:
            _in_thread(absence.__exit__, None, None, None)

    def _call(self, function: Callable[[str | None], object], server: str | None) -> None:
        _in_thread(self._portal.call, function, server)


def _in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Call a blocking function in another thread and wait for it: a portal refuses threads that run a trio
    loop, as tests of anyio may."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(function, *arguments).result()


@asynccontextmanager
async def rocketmq_in_loop(
    directory: Path | None = None, **setup: Unpack[SetupKeywords]
) -> AsyncIterator[RocketMQ]:
    """A name server and brokers in this trio loop. Leaving the context stops them gracefully.

    directory  storage of the brokers, default a temporary directory

    The keywords are those of `Setup`. With trio's MockClock the servers use its time, and the clock does not
    jump while a thread works; with `rmqkit.testing.clock.SettableClock` they use that. Raises ConfigError for
    wrong settings, RuntimeError under asyncio.
    """
    refuse_asyncio()
    wanted = Setup(**setup)
    clock = trio.lowlevel.current_clock()
    jumping = isinstance(clock, trio.testing.MockClock)
    with ExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmqkit-")))
        if isinstance(clock, trio.testing.MockClock):
            stack.enter_context(threads_hold_the_clock(clock))
        transport = wanted.transport or (MEMORY if jumping else TCP)
        async with trio.open_nursery() as nursery:
            servers = RocketMQ(wanted, transport, place, nursery, _clock_of(clock))
            try:
                await servers.start_all()
                yield servers
            finally:
                with trio.CancelScope(shield=True):
                    await servers.stop_all()


def _clock_of(clock: trio.abc.Clock) -> Clock | None:
    """The servers' clock where that of the loop is not an ordinary one."""
    if isinstance(clock, SettableClock):
        return LoopClock(SystemClock().now_ms())
    return LoopClock() if isinstance(clock, trio.testing.MockClock) else None


@contextmanager
def rocketmq_in_thread(
    directory: Path | None = None, *, portal: BlockingPortal | None = None, **setup: Unpack[SetupKeywords]
) -> Iterator[ThreadedRocketMQ]:
    """A name server and brokers in another thread, for tests without trio: `with rocketmq_in_thread() as
    rocketmq: Client(rocketmq.namesrv_text)`. Works under asyncio and without an event loop.

    directory  storage of the brokers, default a temporary directory
    portal     to a thread that runs trio, default a new one, which takes longer

    The keywords are those of `Setup`. A surrounding event loop is blocked during the start. Leaving the
    context stops the servers gracefully. Raises the error that keeps a server from starting, and ConfigError
    for the transport `memory`, which does not lead out of a loop.
    """
    if setup.get("transport") == MEMORY:
        raise ConfigError(
            "transport = 'memory': its connections do not leave an event loop; use another one, or a trio"
            " test"
        )
    with ExitStack() as stack:
        if portal is None:
            portal = stack.enter_context(start_blocking_portal("trio", name="rmqkit test cluster"))
        inner = portal.wrap_async_context_manager(rocketmq_in_loop(directory, **setup))
        yield ThreadedRocketMQ(stack.enter_context(inner), portal)
