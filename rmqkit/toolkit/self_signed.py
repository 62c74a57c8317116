"""The certificate of the test mode: self-signed, for localhost, created at every start (Java: Netty's
SelfSignedCertificate). For transports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

from rmqkit.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_VALID = timedelta(days=365)


def self_signed() -> tuple[EllipticCurvePrivateKey, Certificate]:
    """A private key and its certificate. Raises ConfigError when the required package is missing."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"tls.test.mode.enable needs a package to make a certificate: {how_to_install('tls')}; or name"
            " one in tls.server.certPath"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rmqkit test mode")])
    addresses = [x509.IPAddress(ip_address(each)) for each in ("127.0.0.1", "::1")]
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses])
    start, serial = datetime.now(UTC) - timedelta(days=1), x509.random_serial_number()
    made = x509.CertificateBuilder(name, name, key.public_key(), serial, start, start + _VALID)
    return key, made.add_extension(names, critical=False).sign(key, hashes.SHA256())
