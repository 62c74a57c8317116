"""The `tls.*` settings as aioquic wants them, and the checks that it leaves to others."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion
from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.limits import QUIC_CONNECTION_WINDOW_BYTES, QUIC_LANE_WINDOW_BYTES
from rmqkit.tls_settings import NO_CLIENT_CERTIFICATE, client_auth, has_certificate
from rmqkit_transport_quic.settings import ALPN, QuicSettings

_PUBLIC = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
_TEST_MODE_VALID = timedelta(days=365)


@frozen
class ServerCredentials:
    """`configuration` with what a server shows, `trusted` (PEM) with who signs the certificates that it wants to see of clients."""

    configuration: QuicConfiguration
    trusted: bytes


def server_credentials(settings: QuicSettings, config: Config) -> ServerCredentials:
    """Raises ConfigError that names the setting and the file."""
    configuration = _configuration(settings, is_client=False)
    if config.tls_server_cert_path:
        _load(configuration, config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_key_password, "server")
    elif has_certificate(config):
        _make_self_signed(configuration)
    else:
        raise ConfigError("quic needs a certificate: name its file in tls.server.certPath, and that of its key in tls.server.keyPath")
    wanted = client_auth(config) != NO_CLIENT_CERTIFICATE
    return ServerCredentials(configuration, authorities(config.tls_server_trust_cert_path, "tls.server.trustCertPath") if wanted else b"")


def client_configuration(config: Config, settings: QuicSettings, server_name: str) -> QuicConfiguration:
    """Checks the server's certificate against tls.client.trustCertPath, or else what the system trusts, and its name or IP address.

    Raises ConfigError that names the setting and the file.
    """
    configuration = _configuration(settings, is_client=True)
    configuration.server_name = server_name
    if config.tls_test_mode_enable or not config.tls_client_auth_server:
        configuration.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path:
        configuration.cadata = authorities(config.tls_client_trust_cert_path, "tls.client.trustCertPath")
    else:
        system = ssl.get_default_verify_paths()
        configuration.load_verify_locations(cafile=system.cafile, capath=system.capath)
    if config.tls_client_cert_path:
        _load(configuration, config.tls_client_cert_path, config.tls_client_key_path, config.tls_client_key_password, "client")
    return configuration


def _configuration(settings: QuicSettings, *, is_client: bool) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[ALPN],
        congestion_control_algorithm="cubic",
        idle_timeout=settings.idle_timeout_ms / 1000,
        max_datagram_size=settings.datagram_bytes,
        max_data=QUIC_CONNECTION_WINDOW_BYTES,
        max_stream_data=QUIC_LANE_WINDOW_BYTES,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )


def _load(configuration: QuicConfiguration, certificate: str, key: str, password: str, side: str) -> None:
    where = f"tls.{side}.certPath = {certificate}" + (f", tls.{side}.keyPath = {key}" if key else "")
    try:
        configuration.load_cert_chain(certificate, key or None, password or None)
        own, private = configuration.certificate.public_key(), configuration.private_key
        if private is not None and own.public_bytes(*_PUBLIC) == private.public_key().public_bytes(*_PUBLIC):
            return
        fault = "the key does not belong to the certificate" if private is not None else "there is no key"
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {error.filename}: {error.strerror}") from error
    except (ValueError, TypeError, IndexError):
        fault = "it cannot be read as that"
    # Without the library's own text: it may hold parts of what it could not read.
    raise ConfigError(
        f"{where}: {fault}; both are PEM, the certificate with those that signed it behind it, the key of that certificate "
        f"and, if it is encrypted, with its password in tls.{side}.keyPassword"
    )


def _make_self_signed(configuration: QuicConfiguration) -> None:
    """The certificate of the test mode, for localhost, made anew at every start."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rmqkit test mode")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")), x509.IPAddress(ip_address("::1"))]
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(days=1), now + _TEST_MODE_VALID
    )
    configuration.certificate = made.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(key, hashes.SHA256())
    configuration.private_key = key


def authorities(path: str, key: str) -> bytes:
    """The certificates of a PEM file that sign the peers'. Raises ConfigError when there is none in it."""
    try:
        data = Path(path).read_bytes()
        if tls.load_pem_x509_certificates(data):
            return data
    except OSError as error:
        raise ConfigError(f"{key} = {path}: {error.strerror}") from error
    except ValueError:
        pass
    raise ConfigError(f"{key} = {path}: it is a PEM file of certificates that sign the peers'")


def client_fault(shown: Sequence[x509.Certificate], trusted: bytes) -> str | None:
    """What is wrong with the chain a client has shown, its own certificate first; None when it is fine.

    Looked at are its dates, its chain up to an authority, and what it is for, when it says so.
    """
    own, *chain = shown
    try:
        tls.verify_certificate(own, chain, cadata=trusted)
        usage = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
    except (tls.Alert, ValueError) as error:
        return f"the client's certificate is not accepted: {error}"
    fine = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage)
    return None if fine else "the client's certificate is not one for clients"
