"""The unix socket transport: the contract of transports, and properties of files."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.config import Config, load
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.listen import bind
from rmqkit.plugin.transport import Address, Transport
from rmqkit.testing.listening import Listening, listening
from rmqkit.testing.transport import TransportContract
from rmqkit_transport_unix import unix
from rmqkit_transport_unix.unix import MAX_PATH_BYTES, UnixTransport


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name."""
    path = Path(tempfile.mkdtemp(prefix="rmqkit-"))
    yield path
    shutil.rmtree(path)


class TestUnix(TransportContract):
    """The contract."""

    def make_transport(self, directory: Path) -> Transport:
        return UnixTransport()

    @pytest.fixture
    def tmp_path(self, folder: Path) -> Path:
        """A replacement with short names, because the usual ones are too long for sockets."""
        return folder

    def where(self, directory: Path) -> Address:
        return Address("unix", name=str(directory / "s"))

    async def test_nobody_answers(self, at: Listening) -> None:
        """A full queue is reported at once: the system does not let connects wait, and the unconnected socket
        is detected."""
        address = Address("unix", name=f"{at.address.name}2")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unix, "BACKLOG", 1)
            (listener,) = await at.transport.listen(address)
        async with listener, AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(await at.transport.connect(address, 1_000))
            with pytest.raises(BlockingIOError, match="no connections at the moment") as error:
                await at.transport.connect(address, 1_000)
            assert error.value.errno == errno.EAGAIN
            with pytest.raises(OSError, match="another process listens there"):
                await at.transport.listen(address)


@pytest.mark.parametrize("mode", [0o600, 0o660])
async def test_the_mode_of_the_file(folder: Path, mode: int) -> None:
    """By default only the owner can connect, whatever the umask is."""
    before = os.umask(0o007)
    try:
        path = folder / "s"
        async with listening(UnixTransport(mode), Address("unix", name=str(path))):
            assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


async def test_the_setting_of_the_mode(folder: Path) -> None:
    """The table [plugins.unix] sets the mode of a socket, in octal digits."""
    path = folder / "s"
    config = load(environ={}, flags={"plugins.unix.socketMode": "0640"})
    (listener,), (where,) = await bind(loader.load(config), [Address.parse(f"unix://{path}")])
    async with listener:
        assert (where.name, path.stat().st_mode & 0o777) == (str(path), 0o640)
    with pytest.raises(ConfigError, match=r"plugins\.unix\.socketMode"):
        loader.load(load(environ={}, flags={"plugins.unix.socketMode": "rw"}))


async def test_the_file_goes_with_the_listener(folder: Path) -> None:
    """Closing removes the file, unless another server has replaced it."""
    path = folder / "s"
    address = Address("unix", name=str(path))
    async with listening(UnixTransport(), address):
        assert path.is_socket()
    assert not path.exists()
    async with listening(UnixTransport(), address):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


async def test_a_stale_file_is_replaced(folder: Path) -> None:
    """A file left by a killed server is replaced; a socket with a listener, or another kind of file, is not
    touched."""
    path = folder / "s"
    address = Address("unix", name=str(path))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
        with pytest.raises(OSError, match="another process listens there"):
            await UnixTransport().listen(address)
    async with listening(UnixTransport(), address) as at, at.pair() as (server, client):
        await client.send(b"x")
        assert await server.receive_some() == b"x"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        await UnixTransport().listen(address)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/" + "x" * MAX_PATH_BYTES, "longer than"),
        ("relative", "absolute path"),
        ("/nowhere/at/all", "No such file"),
    ],
)
async def test_paths_that_will_not_do(name: str, said: str) -> None:
    """Binding and connecting name the address and the fault."""
    address = Address("unix", name=name)
    with pytest.raises(ConfigError, match=f"cannot listen on unix://{name}: .*{said}"):
        await bind(loader.load(Config()), [address])
    with pytest.raises(OSError, match=said) as error:
        await UnixTransport().connect(address, 1_000)
    assert error.value.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOENT)


async def test_two_servers_that_start_at_once(folder: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Only one at a time checks the existing file; the error of a waiting one contains a remedy."""
    address = Address("unix", name=str(folder / "s"))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked: choose"):
            await UnixTransport().listen(address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_listen_once, address)
            await trio.testing.wait_all_tasks_blocked()
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


async def _listen_once(address: Address) -> None:
    async with listening(UnixTransport(), address):
        pass
