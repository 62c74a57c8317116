"""Certificates for tests: an authority of this run, and certificates signed by it."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from rmqkit.config import Config, load

PASSWORD = "not to be shown"
HERE = ("127.0.0.1", "::1", "localhost")


@cache
def authority() -> trustme.CA:
    return trustme.CA()


@cache
def other_authority() -> trustme.CA:
    """An authority that is not trusted."""
    return trustme.CA()


@cache
def _issued(names: tuple[str, ...], days: int, trusted: bool) -> trustme.LeafCert:
    now = datetime.now(UTC)
    ca = authority() if trusted else other_authority()
    return ca.issue_cert(*names, not_before=now - timedelta(days=30), not_after=now + timedelta(days=days))


def write(
    folder: Path,
    side: str = "server",
    *,
    names: tuple[str, ...] = HERE,
    days: int = 30,
    trusted: bool = True,
    fresh: bool = False,
) -> dict[str, str]:
    """Certificate and key as files; returns the settings that name them."""
    issued = _issued.__wrapped__(names, days, trusted) if fresh else _issued(names, days, trusted)
    certificate, key = folder / f"{side}.pem", folder / f"{side}.key"
    key.write_bytes(_pkcs8(issued.private_key_pem.bytes()))
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return {f"tls.{side}.certPath": str(certificate), f"tls.{side}.keyPath": str(key)}


def _pkcs8(key: bytes, encryption: KeySerializationEncryption | None = None) -> bytes:
    """The key format that Java can read, too."""
    return load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()
    )


def write_encrypted(folder: Path, side: str = "server") -> dict[str, str]:
    """Like `write`, with a password on the key."""
    settings = write(folder, side)
    path = Path(settings[f"tls.{side}.keyPath"])
    path.write_bytes(_pkcs8(path.read_bytes(), BestAvailableEncryption(PASSWORD.encode())))
    return settings | {f"tls.{side}.keyPassword": PASSWORD}


def trust(folder: Path, side: str = "client", *, trusted: bool = True) -> dict[str, str]:
    """The authority as a file, and the setting that names it."""
    path = folder / f"{side}-trust.pem"
    (authority() if trusted else other_authority()).cert_pem.write_to_path(path)
    return {f"tls.{side}.trustCertPath": str(path)}


def files(settings: dict[str, str], *keys: str) -> list[Path]:
    """The files named by settings, by default certificate and key."""
    return [Path(settings[key]) for key in keys or ("tls.server.certPath", "tls.server.keyPath")]


def both(folder: Path) -> dict[str, str]:
    """The files of a server and a client with one configuration."""
    return write(folder) | trust(folder)


def config(*tables: dict[str, Any]) -> Config:
    flags: dict[str, Any] = {}
    for table in tables:
        flags |= table
    return load(environ={}, flags=flags)


def presented(port: int) -> bytes:
    """The certificate presented by a server on a new connection, in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, context.wrap_socket(sock) as tls:
        return tls.getpeercert(binary_form=True) or b""
