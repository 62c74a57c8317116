"""The `tls.*` settings as SSL contexts, TLS 1.2 at least (Java: TlsHelper.buildSslContext)."""

from __future__ import annotations

import ssl
from pathlib import Path

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.tls_settings import NO_CLIENT_CERTIFICATE, REQUIRE, client_auth
from rmqkit_transport_tcp.self_signed import load_self_signed


def server_context(config: Config) -> ssl.SSLContext:
    """Raises ConfigError that names the setting and the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Connections live long: tickets to resume them would be bytes for nothing.
    context.num_tickets = 0
    if config.tls_server_cert_path:
        _load_own(context, config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_key_password, "server")
    else:
        load_self_signed(context)
    wanted = client_auth(config)
    if wanted != NO_CLIENT_CERTIFICATE:
        context.verify_mode = ssl.CERT_REQUIRED if wanted == REQUIRE else ssl.CERT_OPTIONAL
        _load_trusted(context, config.tls_server_trust_cert_path, "server")
    return context


def client_context(config: Config) -> ssl.SSLContext:
    """Checks the server's certificate against tls.client.trustCertPath, or else what the system trusts, and the name. Raises ConfigError."""
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
        _load_own(context, config.tls_client_cert_path, config.tls_client_key_path, config.tls_client_key_password, "client")
    return context


def _load_own(context: ssl.SSLContext, certificate: str, key: str, password: str, side: str) -> None:
    _check_readable(f"tls.{side}.certPath", certificate)
    if key:
        _check_readable(f"tls.{side}.keyPath", key)
    try:
        # Given a function, OpenSSL never asks at the terminal.
        context.load_cert_chain(certificate, key or None, password=lambda: password)
    except (ssl.SSLError, ValueError) as error:
        where = f"tls.{side}.certPath = {certificate}" + (f", tls.{side}.keyPath = {key}" if key else "")
        raise ConfigError(
            f"{where}: {_said(error)}; both are PEM, the certificate with those that signed it behind it, the key of that certificate "
            f"and, if it is encrypted, with its password in tls.{side}.keyPassword"
        ) from error


def _load_trusted(context: ssl.SSLContext, path: str, side: str) -> None:
    key = f"tls.{side}.trustCertPath"
    _check_readable(key, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{key} = {path}: {_said(error)}; it is a PEM file of certificates that sign the peers'") from error


def _check_readable(key: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConfigError(f"{key} = {path}: {error.strerror}") from error


def _said(error: ssl.SSLError | ValueError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)
