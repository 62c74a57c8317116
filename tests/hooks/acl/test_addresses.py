"""Patterns of addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RequestRefused
from rmqkit_hook_acl.addresses import AddressPattern


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("*", ["10.0.0.1", "::1"], ["memory"]),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("10.10.103.*", ["10.10.103.0", "10.10.103.255"], ["10.10.104.1", "::1"]),
        ("192.168.0-1.*", ["192.168.0.9", "192.168.1.9"], ["192.168.2.9"]),
        ("192.168.0.{1,7}", ["192.168.0.1", "192.168.0.7"], ["192.168.0.2"]),
        ("10.0.0.1, 10.0.0.2", ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"], ["10.0.0.3"]),
        ("1050:0:0:0:5:600:300c:326b", ["1050::5:600:300c:326b"], ["1050::5:600:300c:326c"]),
        ("1050:0000:*", ["1050::1"], ["1050:1::1", "10.0.0.1"]),
        ("", [], ["10.0.0.1"]),
    ],
)
def test_what_a_pattern_stands_for(text: str, matching: list[str], others: list[str]) -> None:
    """All forms of plain_acl.yml are taken, and match what Apache's brokers match."""
    pattern = AddressPattern.parse(text)
    assert [host for host in [*matching, *others] if pattern.matches(host)] == matching


@pytest.mark.parametrize(
    "text",
    ["10.0.0", "10.0.0.256", "10.0.0.5-1", "10.0.0.a", "10.*", "x:*", "host", "1-2-3.0.0.0", "10.0.0.*.*"],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    """A pattern that nobody understands trusts nobody: the start stops."""
    with pytest.raises(RequestRefused, match="not a pattern"):
        AddressPattern.parse(text)


@given(st.text("0123456789.*-{},: abf", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text is a pattern or refused."""
    try:
        AddressPattern.parse(text).matches("10.0.0.1")
    except RequestRefused:
        return
