"""Signatures of requests."""

from __future__ import annotations

import hmac
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.protocol.signature import Secret, content_of, grpc_proof, sign


def test_the_signatures_of_the_sheet() -> None:
    """The values that Java's AclSigner has for these fields are the ones that come out."""
    assert content_of({"topic": "TopicTest", "AccessKey": "ak"}, b"") == b"akTopicTest"
    assert sign(b"akTopicTest", "sk") == "bUNDfLxxr02vTlIhHg73lpRhduQ="
    fields = {"topic": "TopicTest", "SecurityToken": "tok", "AccessKey": "ak", "Signature": "x"}
    assert content_of(fields, b"body") == b"aktokTopicTestbody"
    assert sign(content_of(fields, b"body"), "sk") == "uXT0cWLZxP9sHLyldxjwnQgdzhc="


def test_the_order_is_that_of_code_units() -> None:
    """Upper case comes before lower case, and beyond the basic plane the order is Java's, where a pair of
    surrogates comes before the last characters of the plane."""
    assert content_of({"b": "3", "B": "1", "a": "2"}, b"") == b"123"
    assert content_of({"\uffee": "2", "\U0001f600": "1"}, b"") == b"12"


def test_one_field_and_none() -> None:
    """A header with one field, or with the signature alone, has a content, too."""
    for _ in range(2):
        assert content_of({"a": "1"}, b"x") == b"1x"
        assert content_of({"Signature": "1"}, b"x") == b"x"
        assert content_of({}, b"") == b""


def test_fields_can_be_left_out() -> None:
    """What a client did not sign is not part of the content."""
    assert content_of({"a": "1", "b": "2"}, b"x", ("a",)) == b"2x"


@given(st.text(), st.binary())
def test_the_signature_is_that_of_the_standard(secret: str, content: bytes) -> None:
    """A prepared password signs as HMAC-SHA1 does, short or longer than a block."""
    for key in (secret, secret * 40):
        wanted = hmac.digest(key.encode("utf-8", "replace"), content, "sha1")
        assert b64decode(Secret(key).sign(content)) == wanted


@given(st.dictionaries(st.text(), st.text()), st.binary(), st.text())
def test_any_text_can_be_signed(fields: dict[str, str], body: bytes, secret: str) -> None:
    """Every header that can be received has a content, which ends with the body, and a signature of 28
    characters."""
    content = content_of(fields, body)
    assert content.endswith(body)
    assert len(sign(content, secret)) == 28


_HEX = "0123456789abcdef0123456789ABCDEF01234567"


_DATE = "SignedHeaders=x-mq-date-time"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"MQv2-HMAC-SHA1 Credential=ak, {_DATE}, Signature={_HEX}", "ak"),
        (f"MQv2-HMAC-SHA1 Credential=ak/region/service, {_DATE}, Signature={_HEX}", "ak"),
        (f"MQv2-HMAC-SHA1 Credential=ak//Rocketmq, {_DATE}, Signature={_HEX}", "ak"),
        (f"MQv2-HMAC-SHA1 Credential=, {_DATE}, Signature={_HEX}", ""),
        (f"MQv2-HMAC-SHA1 Credential=ak, Signature={_HEX}0", None),
        (f"MQv2-HMAC-SHA1 Credential=ak, Signature={_HEX[:-1]}", None),
        ("MQv2-HMAC-SHA1 Credential=ak", None),
        (f"Bearer Credential=ak, Signature={_HEX}", None),
        (f"MQv2-HMAC-SHA1 Signature={_HEX}", None),
        ("", None),
    ],
)
def test_proofs_of_grpc(text: str, wanted: str | None) -> None:
    """The key ends where its region begins; without a key there are no credentials."""
    found = grpc_proof(text)
    if wanted is None:
        assert found is None
    else:
        assert found == (wanted, bytes.fromhex(_HEX) if wanted else b"")


@given(st.text())
def test_any_text_is_a_proof_or_none(text: str) -> None:
    """Nothing is raised, whatever a client sends."""
    assert grpc_proof(text) is None
    grpc_proof("MQv2-HMAC-SHA1 " + text)
