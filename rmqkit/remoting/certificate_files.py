"""The server's certificate, kept up to date with its files (Java: FileWatchService, BrokerController.initializeResources; behaviour sheet, C12).

Every 500 ms the hashes of the files are compared. The certificate and its key must both have changed before they are read again; a changed trust file
is enough by itself. Connections that are open stay as they are, new ones get what is made of the new files. When these will not do, the old ones stay in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.tls_settings import NO_CLIENT_CERTIFICATE, client_auth

T = TypeVar("T")
_log = logging.getLogger(__name__)
WATCH_INTERVAL_MS = 500

#: File -> hash of its content, None while it cannot be read.
Hashes = Mapping[str, bytes | None]


class Changes:
    """Decides when to read the files again. `own` are those that must all change together: certificate and key; `trusted` may change alone."""

    def __init__(self, own: frozenset[str], trusted: frozenset[str], loaded: Hashes) -> None:
        self._own = own
        self._trusted = trusted
        self._loaded = self._seen = loaded

    def noticed(self, now: Hashes) -> bool:
        """Whether to read the files: something moved since the last look, and what differs from what is in use is complete."""
        moved, self._seen = now != self._seen, now
        if not moved or None in now.values():
            return False
        changed = {name for name, digest in now.items() if digest != self._loaded[name]}
        return bool(changed) and (self._own <= changed or bool(changed & self._trusted))

    def took(self) -> None:
        """What was noticed last is in use now."""
        self._loaded = self._seen


class CertificateFiles(Generic[T]):
    """`made` is for the next handshake: what `make` makes of the settings and the files they name. Raises what `make` does, at the start.

    name  what log lines call the server
    make  raises ConfigError when the files will not do
    """

    def __init__(self, config: Config, name: str, make: Callable[[Config], T]) -> None:
        self._config = config
        self._name = name
        self._make = make
        own = frozenset(filter(None, (config.tls_server_cert_path, config.tls_server_key_path)))
        trusts = client_auth(config) != NO_CLIENT_CERTIFICATE
        trusted = frozenset({config.tls_server_trust_cert_path} if trusts else ())
        self._files = own | trusted
        self._changes = Changes(own, trusted, hashes(self._files))
        self.made = make(config)

    async def watch(self) -> None:
        """Look every WATCH_INTERVAL_MS until cancelled."""
        while self._files:
            await trio.sleep(WATCH_INTERVAL_MS / 1000)
            # In a thread: the files may lie on a disk that does not answer.
            now = await trio.to_thread.run_sync(hashes, self._files, abandon_on_cancel=True)
            if self._changes.noticed(now):
                self._reload()

    def _reload(self) -> None:
        try:
            self.made = self._make(self._config)
        except ConfigError as error:
            _log.error("%s: its certificate files have changed, but will not do, and the old ones stay in use: %s", self._name, error)
            return
        self._changes.took()
        _log.info("%s: its certificate files have changed and are in use from the next connection on", self._name)


def hashes(files: frozenset[str]) -> dict[str, bytes | None]:
    """The files as they are."""
    return {name: _hash(Path(name)) for name in files}


def _hash(path: Path) -> bytes | None:
    try:
        return sha256(path.read_bytes()).digest()
    except OSError:
        return None
