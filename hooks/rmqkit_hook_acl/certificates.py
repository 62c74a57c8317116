"""The user that a TLS certificate names."""

from __future__ import annotations

from functools import lru_cache

from rmqkit_hook_acl.wire import MAX_NAME_CHARS


@lru_cache(maxsize=1024)
def common_name(certificate: bytes) -> str | None:
    """The common name of the subject of a certificate in DER form, which the transport has checked; None for
    a certificate with none or several, or that cannot be read."""
    # TLS is there, or no connection had a certificate.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(
            NameOID.COMMON_NAME
        )
    except ValueError:
        return None
    if len(names) != 1:
        return None
    name = names[0].value
    return name if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS else None


__all__ = ["common_name"]
