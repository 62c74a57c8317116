"""Addresses as text."""

from __future__ import annotations

import pytest

from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.transport import Address

TEXTS = {
    "127.0.0.1:10911": Address("tcp", "127.0.0.1", 10911),
    "broker-a.example:0": Address("tcp", "broker-a.example", 0),
    "[::1]:9876": Address("tcp", "::1", 9876),
    "tls://broker-a:10911": Address("tls", "broker-a", 10911),
    "quic://[fe80::1]:443": Address("quic", "fe80::1", 443),
    "unix:///run/rmqkit.sock": Address("unix", name="/run/rmqkit.sock"),
    "unix:///run/odd:1": Address("unix", name="/run/odd:1"),
    "memory://name": Address("memory", name="name"),
    "memory://127.0.0.1:20000": Address("memory", "127.0.0.1", 20_000),
    "carrier-pigeon://loft/7": Address("carrier-pigeon", name="loft/7"),
}


@pytest.mark.parametrize(("text", "address"), TEXTS.items())
def test_there_and_back(text: str, address: Address) -> None:
    """A host and a port, or whatever name a scheme without ports has; tcp is left out."""
    assert Address.parse(text) == address
    assert str(address) == text


def test_tcp_may_be_written() -> None:
    """And blanks around it do not matter."""
    assert Address.parse(" tcp://127.0.0.1:1 ") == Address("tcp", "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "HOST:PORT"),
        ("host", "HOST:PORT"),
        ("host:", "HOST:PORT"),
        (":1", "HOST:PORT"),
        ("host:x", "HOST:PORT"),
        ("host:65536", "HOST:PORT"),
        ("host:１", "HOST:PORT"),
        ("::1:9876", "brackets"),
        ("unix://", "HOST:PORT"),
        ("://host:1", "not a scheme"),
        ("Unix:///run/x", "not a scheme"),
        ("a b://x", "not a scheme"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    """ValueError that repeats the text and shows a form."""
    with pytest.raises(ValueError, match=said) as error:
        Address.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["tls://broker-a", "tls:///run/x", "quic://broker-a"])
def test_a_scheme_that_needs_a_port_gets_no_name(text: str) -> None:
    """The transport says whether an address must have a port; the error repeats the address and shows the
    form."""
    registry = loader.load(Config())
    with pytest.raises(ConfigError, match=f"{text}.*://HOST:PORT"):
        registry.transport(Address.parse(text))
    assert registry.transport(Address.parse("unix:///run/x")).scheme == "unix"
