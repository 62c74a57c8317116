"""The certificate of the test mode: signed by nobody but itself, made anew at every start (Java: Netty's SelfSignedCertificate)."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from rmqkit.errors import ConfigError

_VALID = timedelta(days=365)


def load_self_signed(context: ssl.SSLContext) -> None:
    """Give the context a certificate for localhost. Raises ConfigError when the package that makes it is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            "tls.test.mode.enable needs a package to make a certificate: pip install 'rmqkit[tls]', or name one in tls.server.certPath"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rmqkit test mode")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")), x509.IPAddress(ip_address("::1"))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - timedelta(days=1), now + _VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # OpenSSL reads keys from files only. The folder is this user's alone, and gone when this returns.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "test-mode.pem"
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(path)
