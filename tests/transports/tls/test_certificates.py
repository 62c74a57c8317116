"""Certificate files that change under a running server (behaviour sheet, C12)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import trio
import trio.testing
from attrs import define

from rmqkit.plugin.transport import Address
from rmqkit.testing.listening import Listening, echoing, listening, received, until
from rmqkit.toolkit.certificate_files import Changes, Hashes
from rmqkit_transport_tcp.tcp import TcpTransport
from rmqkit_transport_tcp.tls import TlsTransport
from tests.transports.tls import certs

OWN, TRUSTED = frozenset({"cert", "key"}), frozenset({"trust"})
START: dict[str, bytes | None] = {"cert": b"1", "key": b"1", "trust": b"1"}


@pytest.mark.parametrize(
    ("looks", "noticed"),
    [
        ([{}, {}], [False, False]),
        ([{"cert": b"2"}, {}, {"key": b"2"}, {}], [False, False, True, False]),
        ([{"key": b"2"}, {"cert": b"2"}], [False, True]),
        ([{"key": b"2", "cert": b"2"}], [True]),
        ([{"trust": b"2"}, {}], [True, False]),
        ([{"cert": b"2"}, {"cert": b"1"}, {"key": b"2"}], [False, False, False]),
        ([{"cert": None}, {"cert": b"2"}, {"key": None}, {"key": b"2"}], [False, False, False, True]),
        ([{"trust": None}, {"trust": b"1"}], [False, False]),
    ],
    ids=[
        "nothing",
        "certificate, key",
        "key, certificate",
        "at once",
        "trust alone",
        "and back",
        "files that are gone for a moment",
        "trust and back",
    ],
)
def test_when_to_read_the_files_again(looks: list[dict[str, bytes | None]], noticed: list[bool]) -> None:
    """Certificate and key must both differ from those in use, in any order; the trust file is used by itself;
    a missing file is not a change."""
    changes, now = Changes(OWN, TRUSTED, START), START
    found = []
    for look in looks:
        now = {**now, **look}
        found.append(changes.noticed(now))
        if found[-1]:
            changes.took()
    assert found == noticed


def test_files_that_would_not_do_are_tried_again_when_they_change() -> None:
    """Invalid files are read again only after a further change."""
    changes = Changes(OWN, TRUSTED, START)
    half_written = {**START, "cert": b"2", "key": b"2"}
    assert changes.noticed(half_written)
    assert not changes.noticed(half_written)
    assert changes.noticed({**half_written, "key": b"3"})


# --- with files and connections -----------------------------------------------------------------------------


@define
class Watched:
    """A server with a watched certificate, and the number of checks."""

    at: Listening
    clock: trio.testing.MockClock
    looks: int = 0
    known: int = 0

    async def look(self, times: int = 1) -> None:
        """Let the time of this many checks pass and wait for them."""
        for _ in range(times):
            self.known += 1
            self.clock.jump(0.5)
            await until(lambda: self.looks == self.known)
            await trio.testing.wait_all_tasks_blocked()

    async def shown(self) -> bytes:
        return await trio.to_thread.run_sync(certs.presented, self.at.address.port)


@asynccontextmanager
async def watched(
    monkeypatch: pytest.MonkeyPatch, clock: trio.testing.MockClock, *tables: dict[str, Any]
) -> AsyncIterator[Watched]:
    noticed = Changes.noticed
    async with (
        listening(TcpTransport(certs.config(*tables)), Address("tcp", "127.0.0.1", 0)) as at,
        echoing(at),
    ):
        watch = Watched(at, clock)

        def counting(changes: Changes, now: Hashes) -> bool:
            watch.looks += 1
            return noticed(changes, now)

        monkeypatch.setattr(Changes, "noticed", counting)
        await trio.testing.wait_all_tasks_blocked()
        yield watch


async def connect(at: Listening, *tables: dict[str, Any]) -> anyio.abc.ByteStream:
    return await TlsTransport(certs.config(*tables)).connect(
        Address("tls", "127.0.0.1", at.address.port), 10_000
    )


async def echo(client: anyio.abc.ByteStream) -> None:
    await client.send(b"hello")
    assert await received(client, 5) == b"hello"


@pytest.mark.row("S088", "S344")
async def test_a_new_certificate_is_used_once_both_files_are_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The files are checked every 500 ms; one new file changes nothing, both are used; open connections
    stay."""
    caplog.set_level(logging.INFO)
    settings = certs.write(tmp_path)
    _, key = certs.files(settings)
    async with (
        watched(monkeypatch, mock_clock, settings) as server,
        await connect(server.at, certs.trust(tmp_path)) as open_before,
    ):
        await echo(open_before)
        first = await server.shown()
        old_key = key.read_bytes()
        certs.write(tmp_path, fresh=True)
        new_key = key.read_bytes()
        key.write_bytes(old_key)
        await server.look(5)
        assert await server.shown() == first
        key.write_bytes(new_key)
        mock_clock.jump(0.499)
        assert await server.shown() == first
        assert server.looks == 5
        mock_clock.jump(0.001)
        await until(lambda: server.looks == 6)
        await trio.testing.wait_all_tasks_blocked()
        second = await server.shown()
        assert second != first
        await echo(open_before)
        async with await connect(server.at, certs.trust(tmp_path)) as opened_after:
            await echo(opened_after)
        certs.write(tmp_path, fresh=True)
        key.write_bytes(new_key)
        await server.look(2)
        assert await server.shown() == second
        assert [record for record in caplog.records if record.levelno > logging.INFO] == []
        assert sum("are in use from the next connection on" in message for message in caplog.messages) == 1


@pytest.mark.row("S344")
async def test_a_new_trust_file_is_used_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Without a new certificate, clients of the other authority are accepted, those of the first are not, and
    open connections stay."""
    demand = {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing"} | certs.trust(
        tmp_path, "server"
    )
    async with watched(monkeypatch, mock_clock, certs.write(tmp_path), demand) as server:
        trust = certs.trust(tmp_path)
        async with await connect(server.at, trust, certs.write(tmp_path, "client")) as ours:
            await echo(ours)
            certs.trust(tmp_path, "server", trusted=False)
            await server.look()
            await echo(ours)
        async with await connect(server.at, trust, certs.write(tmp_path, "client", trusted=False)) as theirs:
            await echo(theirs)
        async with await connect(server.at, trust, certs.write(tmp_path, "client")) as ours:
            with pytest.raises(anyio.BrokenResourceError, match="does not accept the certificate"):
                await ours.receive()


async def test_files_that_will_not_do_change_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The old certificate stays in use, the log has the reason once, and valid files are used later."""
    settings = certs.write(tmp_path)
    certificate, key = certs.files(settings)
    async with watched(monkeypatch, mock_clock, settings) as server:
        first = await server.shown()
        certificate.write_text("half of a")
        key.write_text("file")
        await server.look(3)
        assert await server.shown() == first
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "the old ones stay in use: tls.server.certPath" in record.getMessage()
        certificate.unlink()
        await server.look()
        assert await server.shown() == first
        certs.write(tmp_path, fresh=True)
        await server.look()
        assert await server.shown() != first


# --- a client's files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_a_client_takes_its_new_files_with_the_next_connection(
    tmp_path: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The rules are those of the server: a certificate is used when its key has changed too, a new trust file
    at once; invalid files leave the old ones in use and are logged once. Open connections stay."""
    caplog.set_level(logging.INFO)
    demand = {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing"} | certs.trust(
        tmp_path, "server"
    )
    own, trust = certs.write(tmp_path, "client"), certs.trust(tmp_path)
    certificate, key = (Path(own[name]) for name in ("tls.client.certPath", "tls.client.keyPath"))
    transport = TlsTransport(certs.config(own, trust))

    async def talk(address: Address) -> None:
        async def heard() -> None:
            async with await transport.connect(address, 10_000) as client:
                await echo(client)

        first = await transport.connect(address, 10_000)
        await echo(first)
        good_key = key.read_bytes()
        certs.write(tmp_path, "client", trusted=False)
        bad_key = key.read_bytes()
        key.write_bytes(good_key)
        await heard()
        key.write_bytes(bad_key)
        with pytest.raises(anyio.BrokenResourceError, match="does not accept the certificate"):
            await heard()
        await echo(first)
        certs.write(tmp_path, "client")
        await heard()
        certificate.write_text("half of a")
        key.write_text("file")
        await heard()
        await heard()
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "the old ones stay in use: tls.client.certPath" in record.getMessage()
        certs.write(tmp_path, "client")
        certs.trust(tmp_path, trusted=False)
        with pytest.raises(ConnectionError, match="is not accepted"):
            await heard()
        await first.aclose()

    async with (
        listening(
            TcpTransport(certs.config(certs.write(tmp_path), demand)), Address("tcp", "127.0.0.1", 0)
        ) as at,
        echoing(at),
    ):
        address = Address("tls", "127.0.0.1", at.address.port)
        await trio.to_thread.run_sync(partial(anyio.run, talk, address, backend=backend))
