"""Connects to the coordinator that the settings name."""

from __future__ import annotations

import ssl

from rmqkit.errors import ConfigError, how_to_install
from rmqkit_failover.coordinator import Coordinator
from rmqkit_failover.memory import MemoryCoordinator, shared_ledger
from rmqkit_failover.settings import FailoverOptions

_EXAMPLE = "as in etcd://10.0.0.1:2379,10.0.0.2:2379"
#: A call takes at most this part of a lease, so that a second one can follow.
_TIMEOUT = 1 / 3


def connected(given: FailoverOptions, prefix: str) -> Coordinator:
    """The coordinator for the keys with a prefix. `memory://NAME` is shared by the brokers of one process.
    Nothing is sent yet. Raises ConfigError."""
    scheme, _, rest = given.coordinator.partition("://")
    if scheme == "memory" and rest:
        return MemoryCoordinator(shared_ledger(rest), prefix)
    if scheme not in ("etcd", "etcds") or not all(_is_address(each) for each in rest.split(",")):
        raise ConfigError(f"plugins.failover.coordinator = {given.coordinator}: {_EXAMPLE}")
    try:
        from rmqkit_failover.etcd import EtcdCoordinator
    except ModuleNotFoundError as error:
        raise ConfigError(f"plugins.failover.coordinator: {error}: {how_to_install('failover')}") from error
    is_encrypted = scheme == "etcds"
    return EtcdCoordinator(
        [f"{'https' if is_encrypted else 'http'}://{each}" for each in rest.split(",")],
        prefix,
        timeout_s=given.lease_s * _TIMEOUT,
        tls=_tls(given) if is_encrypted else None,
        user=(given.user, given.password) if given.user else None,
    )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65_536


def _tls(given: FailoverOptions) -> ssl.SSLContext:
    """The TLS settings of connections to the coordinator. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=given.ca_path or None)
        if given.cert_path:
            context.load_cert_chain(given.cert_path, given.key_path or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"plugins.failover: caPath, certPath or keyPath: {error}") from error
    return context
