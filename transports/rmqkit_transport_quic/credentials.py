"""Converts the `tls.*` settings for aioquic and performs the checks that aioquic does not."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.packet import QuicProtocolVersion
from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from rmqkit.config import Config
from rmqkit.config.tls import (
    NO_CLIENT_CERTIFICATE,
    OwnCertificate,
    client_auth,
    has_certificate,
    own_certificate,
    trust_error,
)
from rmqkit.errors import ConfigError
from rmqkit.toolkit.self_signed import self_signed
from rmqkit_transport_quic.limits import QUIC_CONNECTION_WINDOW_BYTES, QUIC_LANE_WINDOW_BYTES
from rmqkit_transport_quic.settings import ALPN, SMALLEST_DATAGRAM_BYTES, QuicSettings
from rmqkit_transport_quic.udp import loopback_datagram_bytes

_PUBLIC = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@frozen
class ServerCredentials:
    """`configuration` contains the server's certificate; `trusted` (PEM) the authorities whose client
    certificates are accepted."""

    configuration: QuicConfiguration
    trusted: bytes


def server_credentials(settings: QuicSettings, config: Config) -> ServerCredentials:
    """The certificate of a server and what it demands of clients. Raises ConfigError with the setting and the
    file."""
    configuration = _configuration(settings, is_client=False)
    if config.tls_server_cert_path:
        _load(configuration, own_certificate(config, "server"))
    elif has_certificate(config):
        configuration.private_key, configuration.certificate = self_signed()
    else:
        raise ConfigError(
            "quic needs a certificate: name its file in tls.server.certPath, and that of its key in"
            " tls.server.keyPath"
        )
    wanted = client_auth(config) != NO_CLIENT_CERTIFICATE
    trusted = authorities(config.tls_server_trust_cert_path, "server") if wanted else b""
    return ServerCredentials(configuration, trusted)


def client_configuration(config: Config, settings: QuicSettings, server_name: str) -> QuicConfiguration:
    """Configuration that checks the server's certificate against tls.client.trustCertPath, or else the
    system's authorities, and its name or IP address.

    Raises ConfigError with the setting and the file.
    """
    configuration = _configuration(settings, is_client=True)
    configuration.server_name = server_name
    if config.tls_test_mode_enable or not config.tls_client_auth_server:
        configuration.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path:
        configuration.cadata = authorities(config.tls_client_trust_cert_path, "client")
    else:
        system = ssl.get_default_verify_paths()
        configuration.load_verify_locations(cafile=system.cafile, capath=system.capath)
    if config.tls_client_cert_path:
        _load(configuration, own_certificate(config, "client"))
    return configuration


def _configuration(settings: QuicSettings, *, is_client: bool) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[ALPN],
        congestion_control_algorithm="cubic",
        idle_timeout=settings.idle_timeout_ms / 1000,
        max_datagram_size=settings.datagram_bytes or SMALLEST_DATAGRAM_BYTES,
        max_data=QUIC_CONNECTION_WINDOW_BYTES,
        max_stream_data=QUIC_LANE_WINDOW_BYTES,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )


def for_peer(
    configuration: QuicConfiguration, settings: QuicSettings, address: NetworkAddress
) -> QuicConfiguration:
    """The configuration for one connection: with larger datagrams to a peer on this machine, unless the
    settings give their size."""
    size = 0 if settings.datagram_bytes else loopback_datagram_bytes(address[0])
    return replace(configuration, max_datagram_size=size) if size else configuration


def _load(configuration: QuicConfiguration, files: OwnCertificate) -> None:
    try:
        configuration.load_cert_chain(files.certificate, files.key or None, files.password or None)
        own, private = configuration.certificate.public_key(), configuration.private_key
        if private is not None and own.public_bytes(*_PUBLIC) == private.public_key().public_bytes(*_PUBLIC):
            return
        fault = "the key does not belong to the certificate" if private is not None else "there is no key"
    except OSError as error:
        raise files.error(f"cannot read {error.filename}: {error.strerror}") from error
    except (ValueError, TypeError, IndexError):
        fault = "it cannot be read as that"
    # The library's own text is not included: it may contain parts of the file.
    raise files.error(fault)


def authorities(path: str, side: str) -> bytes:
    """The authorities in a PEM file. Raises ConfigError when it contains none."""
    try:
        data = Path(path).read_bytes()
        if tls.load_pem_x509_certificates(data):
            return data
    except OSError as error:
        raise ConfigError(f"tls.{side}.trustCertPath = {path}: {error.strerror}") from error
    except ValueError:
        pass
    raise trust_error(side, path)


def client_fault(shown: Sequence[x509.Certificate], trusted: bytes) -> str | None:
    """The fault in the chain that a client has sent, its own certificate first; None when there is none.

    Checked are its dates, its chain up to an authority, and its permitted use, if stated.
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
