"""Signatures of requests (wire-protocol sheet, section 7.1; Java: AclSigner, AclUtils, AclClientRPCHook).

A signature covers the values of the header fields, sorted by their names, and the body: neither the request
code nor the names, and no time. A request that was seen can be sent again; TLS is what hides requests.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from operator import itemgetter

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
#: The protocol of RocketMQ's clients of version 5, as `Caller.protocol`.
GRPC = "grpc"
#: What clients of gRPC sign with, as fields of requests: the proof, and the date that it covers, and
#: nothing else (gRPC sheet, section 3).
AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"
#: With what a proxy that has a key of its own signs a request that it passes on, beside the proof of the
#: client who has made it: brokers of rmqkit then take that proof as at their own door. Others ignore these.
PROXY_KEY, PROXY_SIGNATURE = "ProxyAccessKey", "ProxySignature"
_CREDENTIAL = re.compile(r"\bCredential=([^,/\s]*)")
_PROOF = re.compile(r"\bSignature=([0-9A-Fa-f]{40})(?![0-9A-Fa-f])")
_SCHEME = "MQv2-HMAC-SHA1 "
_BLOCK_BYTES = 64
#: Names of fields, as they came -> a function that returns the values to sign, in their order. Clients send a
#: few combinations again and again.
_orders: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}
_MAX_ORDERS = 256


def content_of(fields: Mapping[str, str], body: bytes, without: Collection[str] = ()) -> bytes:
    """What a signature covers: the values of all fields but the signature itself and those named in
    `without`."""
    names = tuple(fields)
    values = None if without else _orders.get(names)
    if values is None:
        values = _in_order([name for name in names if name != SIGNATURE and name not in without])
        if not without:
            if len(_orders) >= _MAX_ORDERS:
                _orders.clear()
            _orders[names] = values
    return "".join(values(fields)).encode("utf-8", "replace") + body


def _in_order(names: list[str]) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    ordered = sorted(names) if "".join(names).isascii() else sorted(names, key=_code_units)
    if len(ordered) > 1:
        return itemgetter(*ordered)
    return lambda fields: tuple(fields[name] for name in ordered)


def _code_units(name: str) -> bytes:
    """The order of Java's strings, which differs beyond the basic plane."""
    return name.encode("utf-16-be", "surrogatepass")


class Secret:
    """A password, ready to sign: the two beginnings of HMAC-SHA1 are made once."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode("utf-8", "replace")
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha1(bytes(byte ^ 0x5C for byte in key))

    def sign(self, content: bytes) -> bytes:
        """The signature of a content, as the field has it."""
        return b64encode(self.digest(content))

    def digest(self, content: bytes) -> bytes:
        """The 20 bytes of a signature."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()


def grpc_proof(text: str) -> tuple[str, bytes] | None:
    """The access key and the bytes of the signature in the metadata `authorization` of a client of gRPC;
    None for a text without them. The key is empty when the client has no credentials."""
    key, proof = _CREDENTIAL.search(text), _PROOF.search(text)
    if not text.startswith(_SCHEME) or key is None:
        return None
    if not key[1]:
        return "", b""
    return None if proof is None else (key[1], bytes.fromhex(proof[1]))


def sign(content: bytes, secret_key: str) -> str:
    """The signature of one content, as text."""
    return Secret(secret_key).sign(content).decode()


__all__ = [
    "ACCESS_KEY",
    "AUTHORIZATION",
    "DATE_TIME",
    "GRPC",
    "PROXY_KEY",
    "PROXY_SIGNATURE",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "Secret",
    "content_of",
    "grpc_proof",
    "sign",
]
