"""Certificates that are reloaded when their files change (Java: FileWatchService,
BrokerController.initializeResources; behaviour sheet, C12).

A server compares the hashes of its files every 500 ms, a client before each connection. The certificate and
its key are reloaded only after both have changed; a changed trust file is sufficient by itself. Open
connections are not affected, new ones use the new files. If the new files are unusable, the old certificates
stay in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import anyio.to_thread
import trio
from attrs import field, frozen

from rmqkit.config import Config
from rmqkit.config.tls import NO_CLIENT_CERTIFICATE, client_auth
from rmqkit.errors import ConfigError

T = TypeVar("T")
_log = logging.getLogger(__name__)
WATCH_INTERVAL_MS = 500

#: File -> hash of its content, None while it cannot be read.
Hashes = Mapping[str, bytes | None]


class Changes:
    """Decides when to reload files. `own` (certificate and key) must all have changed; `trusted` may change
    alone."""

    def __init__(self, own: frozenset[str], trusted: frozenset[str], loaded: Hashes) -> None:
        self._own = own
        self._trusted = trusted
        self._loaded = self._seen = loaded

    def noticed(self, now: Hashes) -> bool:
        """Whether to reload: a file has changed since the last call, and the changed files are a complete
        set."""
        moved, self._seen = now != self._seen, now
        if not moved or None in now.values():
            return False
        changed = {name for name, digest in now.items() if digest != self._loaded[name]}
        return bool(changed) and (self._own <= changed or bool(changed & self._trusted))

    def took(self) -> None:
        """Record that the last noticed files are in use."""
        self._loaded = self._seen


def _named(names: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, names))


@frozen
class Files:
    """The files that the settings name for one side: `own` is certificate and key, `trusted` the authorities
    of the peers' certificates."""

    own: frozenset[str] = field(converter=_named)
    trusted: frozenset[str] = field(converter=_named)


def server_files(config: Config) -> Files:
    """The files of a server's certificate, and the trusted authorities if the server requests certificates of
    clients."""
    trusts = client_auth(config) != NO_CLIENT_CERTIFICATE
    return Files(
        (config.tls_server_cert_path, config.tls_server_key_path),
        (config.tls_server_trust_cert_path,) if trusts else (),
    )


def client_files(config: Config) -> Files:
    """The files of a client's certificate, and the trusted authorities if the client verifies servers."""
    checks = config.tls_client_auth_server and not config.tls_test_mode_enable
    return Files(
        (config.tls_client_cert_path, config.tls_client_key_path),
        (config.tls_client_trust_cert_path,) if checks else (),
    )


class CertificateFiles(Generic[T]):
    """`made` applies to the next handshake: the result of `make` for the settings and the present files. The
    constructor raises the errors of `make`.

    name   the owner, for log lines
    make   raises ConfigError when the files are unusable
    files  the files to watch; by default those of a server
    """

    def __init__(
        self, config: Config, name: str, make: Callable[[Config], T], files: Files | None = None
    ) -> None:
        self._config = config
        self._name = name
        self._make = make
        files = files or server_files(config)
        self._files = files.own | files.trusted
        self._stamps = stamps(self._files)
        self._changes = Changes(files.own, files.trusted, hashes(self._files))
        self.made = make(config)

    async def watch(self) -> None:
        """Check every WATCH_INTERVAL_MS until cancelled. Runs under trio."""
        while self._files:
            await trio.sleep(WATCH_INTERVAL_MS / 1000)
            # In a thread: the files may lie on a disk that does not answer.
            self._look(await trio.to_thread.run_sync(hashes, self._files, abandon_on_cancel=True))

    async def look(self) -> None:
        """Check once, for callers without a task. Runs under trio and asyncio; costs one stat for each
        unchanged file. Cancelled: the next call checks again."""
        now = stamps(self._files)
        if now != self._stamps:
            found = await anyio.to_thread.run_sync(hashes, self._files, abandon_on_cancel=True)
            self._stamps = now
            self._look(found)

    def _look(self, now: Hashes) -> None:
        if self._changes.noticed(now):
            self._reload()

    def _reload(self) -> None:
        try:
            self.made = self._make(self._config)
        except ConfigError as error:
            _log.error(
                "%s: its certificate files have changed, but will not do, and the old ones stay in use: %s",
                self._name,
                error,
            )
            return
        self._changes.took()
        _log.info(
            "%s: its certificate files have changed and are in use from the next connection on", self._name
        )


def stamps(files: frozenset[str]) -> dict[str, tuple[int, ...]]:
    """Metadata that changes when a file is written or replaced; empty for a missing file."""
    return {name: _stamp(Path(name)) for name in files}


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def hashes(files: frozenset[str]) -> dict[str, bytes | None]:
    """The hashes of the files now."""
    return {name: _hash(Path(name)) for name in files}


def _hash(path: Path) -> bytes | None:
    try:
        return sha256(path.read_bytes()).digest()
    except OSError:
        return None
