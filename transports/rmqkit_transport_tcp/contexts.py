"""The `tls.*` settings as SSL contexts for TLS 1.2 and later (Java: TlsHelper.buildSslContext)."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rmqkit.config import Config
from rmqkit.config.tls import (
    NO_CLIENT_CERTIFICATE,
    REQUIRE,
    OwnCertificate,
    client_auth,
    own_certificate,
    trust_error,
)
from rmqkit.errors import ConfigError
from rmqkit.toolkit.self_signed import self_signed


def server_context(config: Config, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """TLS for accepted connections, with the ALPN names that are offered. Raises ConfigError with the setting
    and the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Connections are long-lived, so session tickets would be useless.
    context.num_tickets = 0
    if alpn:
        context.set_alpn_protocols(alpn)
    if config.tls_server_cert_path:
        _load_own(context, own_certificate(config, "server"))
    else:
        _load_self_signed(context)
    wanted = client_auth(config)
    if wanted != NO_CLIENT_CERTIFICATE:
        context.verify_mode = ssl.CERT_REQUIRED if wanted == REQUIRE else ssl.CERT_OPTIONAL
        _load_trusted(context, config.tls_server_trust_cert_path, "server")
    return context


def client_context(config: Config) -> ssl.SSLContext:
    """A context that checks the server's certificate against tls.client.trustCertPath, or else the system's
    authorities, and its name. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.tls_test_mode_enable or not config.tls_client_auth_server:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path:
        _load_trusted(context, config.tls_client_trust_cert_path, "client")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if config.tls_client_cert_path:
        _load_own(context, own_certificate(config, "client"))
    return context


def _load_self_signed(context: ssl.SSLContext) -> None:
    key, certificate = self_signed()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # OpenSSL reads keys from files only. The folder is accessible to this user only and removed on return.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "test-mode.pem"
        path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        context.load_cert_chain(path)


def _load_own(context: ssl.SSLContext, own: OwnCertificate) -> None:
    _check_readable(f"tls.{own.side}.certPath", own.certificate)
    if own.key:
        _check_readable(f"tls.{own.side}.keyPath", own.key)
    try:
        # With a password function, OpenSSL never prompts on the terminal.
        context.load_cert_chain(own.certificate, own.key or None, password=lambda: own.password)
    except (ssl.SSLError, ValueError) as error:
        raise own.error(_said(error)) from error


def _load_trusted(context: ssl.SSLContext, path: str, side: str) -> None:
    _check_readable(f"tls.{side}.trustCertPath", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise trust_error(side, path, _said(error)) from error


def _check_readable(key: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConfigError(f"{key} = {path}: {error.strerror}") from error


def _said(error: ssl.SSLError | ValueError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)
