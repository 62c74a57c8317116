"""The network of a replica group in tests, and ways to cut a member off.

Relays     all processes are on loopback; a member's way to etcd leads through a relay
Namespaces each member has a network namespace with an address of its own, etcd, the name server and the
           clients have another one; a cut separates a member from everything, other members included
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Flag
from functools import cache, partial
from pathlib import Path

import trio
from attrs import define, field, frozen

from tests import namespaces, programs

_CHUNK = 65_536
_HUB = 1
_NET = "10.77.0"
_NAMESPACES = Path("/run/netns")


class Way(Flag):
    """What a cut drops: what a member sends, what it would receive, or both."""

    SENT = 1
    RECEIVED = 2
    BOTH = 3


@frozen
class Place:
    """Where a member runs, and the address at which it finds etcd. `namespace`: its name, empty without."""

    host: str
    etcd: str
    namespace: str = ""


class Network(ABC):
    """`host` is the address of etcd and the name server."""

    host = "127.0.0.1"

    @contextmanager
    def made(self, names: Sequence[str]) -> Iterator[None]:
        """The network of these members; the calling thread is where the clients are."""
        yield

    @abstractmethod
    async def connect(self, names: Sequence[str], etcd: str, nursery: trio.Nursery) -> dict[str, Place]:
        """Where the members run."""

    @abstractmethod
    async def cut(self, name: str, way: Way) -> None:
        """Drop what a member sends or receives, silently: its connections stay open."""

    @abstractmethod
    async def mend(self, name: str) -> None: ...


@define
class _Relay:
    """A way to etcd. `open` has an event for each way, which is set while bytes pass."""

    target: str
    open: dict[Way, trio.Event] = field(factory=dict)

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        self.mend()
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, self._carry, [listener]))
            task_status.started("{}:{}".format(*listener.socket.getsockname()))

    def cut(self, way: Way) -> None:
        for each in self.open:
            if each in way:
                self.open[each] = trio.Event()

    def mend(self) -> None:
        for way in (Way.SENT, Way.RECEIVED):
            self.open.setdefault(way, trio.Event()).set()

    async def _carry(self, client: trio.SocketStream) -> None:
        host, port = self.target.rsplit(":", 1)
        async with (
            client,
            await trio.open_tcp_stream(host, int(port)) as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._copy, client, server, Way.SENT, nursery.cancel_scope)
            nursery.start_soon(self._copy, server, client, Way.RECEIVED, nursery.cancel_scope)

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, way: Way, both: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError):
            while data := await source.receive_some(_CHUNK):
                await self.open[way].wait()
                await target.send_all(data)
        both.cancel()


@define
class Relays(Network):
    """Cuts members off from etcd alone."""

    _relays: dict[str, _Relay] = field(factory=dict)

    async def connect(self, names: Sequence[str], etcd: str, nursery: trio.Nursery) -> dict[str, Place]:
        self._relays = {name: _Relay(etcd) for name in names}
        return {name: Place(self.host, await nursery.start(self._relays[name].run)) for name in names}

    async def cut(self, name: str, way: Way) -> None:
        self._relays[name].cut(way)

    async def mend(self, name: str) -> None:
        self._relays[name].mend()


@define
class Namespaces(Network):
    """Cuts members off from all others. Needs root; `refusal` says whether it works."""

    host = f"{_NET}.{_HUB}"
    _cuts: dict[str, Way] = field(factory=dict)

    @contextmanager
    def made(self, names: Sequence[str]) -> Iterator[None]:
        hub = _namespace("hub")
        _remove_abandoned()
        try:
            _make_hub(hub)
            for number, name in enumerate(names, _HUB + 1):
                _make_member(hub, name, f"{_NET}.{number}")
            programs.prepare()
            with namespaces.entered(hub):
                yield
        finally:
            for each in ("hub", *names):
                _remove(_namespace(each))

    async def connect(self, names: Sequence[str], etcd: str, nursery: trio.Nursery) -> dict[str, Place]:
        return {
            name: Place(f"{_NET}.{number}", etcd, _namespace(name))
            for number, name in enumerate(names, _HUB + 1)
        }

    async def cut(self, name: str, way: Way) -> None:
        self._cuts[name] = way
        for each, (namespace, device) in self._ends(name).items():
            if each in way:
                await trio.to_thread.run_sync(
                    _run, "tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "blackhole"
                )

    async def mend(self, name: str) -> None:
        way = self._cuts.pop(name)
        for each, (namespace, device) in self._ends(name).items():
            if each in way:
                await trio.to_thread.run_sync(
                    _run, "tc", "-n", namespace, "qdisc", "del", "dev", device, "root"
                )

    @staticmethod
    def _ends(name: str) -> dict[Way, tuple[str, str]]:
        """The end of a member's cable whose sender drops for each way."""
        return {Way.SENT: (_namespace(name), "eth0"), Way.RECEIVED: (_namespace("hub"), f"to-{name}")}


@cache
def refusal() -> str:
    """Why network namespaces cannot be made and cut here; empty if they can."""

    async def try_it() -> None:
        network = Namespaces()
        with network.made(["try"]):
            await network.cut("try", Way.BOTH)
            await network.mend("try")

    try:
        trio.run(try_it)
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


def _remove(namespace: str) -> None:
    """Its interfaces disappear with it, once no process is left there."""
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _remove_abandoned() -> None:
    """Remove the namespaces of programs that were killed."""
    for path in _NAMESPACES.glob("rmqkit-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            _remove(path.name)


def _namespace(name: str) -> str:
    return f"rmqkit-{os.getpid()}-{name}"


def _make_hub(hub: str) -> None:
    _ip("netns", "add", hub)
    _ip("-n", hub, "link", "set", "lo", "up")
    _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
    _ip("-n", hub, "addr", "add", f"{_NET}.{_HUB}/24", "dev", "bridge")
    _ip("-n", hub, "link", "set", "bridge", "up")


def _make_member(hub: str, name: str, host: str) -> None:
    """A namespace whose eth0 is connected to the bridge by `to-NAME`."""
    own = _namespace(name)
    _ip("netns", "add", own)
    _ip("-n", hub, "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", own)
    _ip("-n", hub, "link", "set", f"to-{name}", "master", "bridge", "up")
    _ip("-n", own, "addr", "add", f"{host}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", own, "link", "set", device, "up")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    """Raises OSError with what the program says."""
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise OSError(f"{' '.join(words)}: {found.stderr.strip()}")
